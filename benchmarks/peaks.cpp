// What this machine's cores reach at best, as a bound for passes.py: reading memory, and multiplying. Compiled and run by it.
#include <chrono>
#include <cstdint>
#if defined(__x86_64__)
#include <immintrin.h>
#endif
#if defined(__AMX_INT8__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace {
double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }
constexpr int ROUNDS = 100000, CHAINS = 12;  // independent sums: enough to hide a product's latency
}  // namespace

extern "C" {
// Bytes a second at which one thread reads `bytes` of memory, a multiple of 4,096, for about `seconds`, again and again.
double read_rate(const char* memory, int64_t bytes, double seconds) {
    typedef int64_t Vector __attribute__((vector_size(64), aligned(64), may_alias));
    Vector sums[8] = {};
    const double began = now();
    int64_t times = 0;
    for (; now() - began < seconds; ++times)
        for (const char* from = memory; from < memory + bytes; from += 512) {
            for (int i = 0; i < 8; ++i) {
                sums[i] += *reinterpret_cast<const Vector*>(from + 64 * i);
                __builtin_prefetch(from + 64 * i + 4096);
            }
        }
    const double taken = now() - began;
    volatile int64_t kept = (sums[0] + sums[1] + sums[2] + sums[3] + sums[4] + sums[5] + sums[6] + sums[7])[0];
    (void)kept;
    return double(times) * bytes / taken;
}

// Products a second of one thread, in registers: float32, or (`whole`) bytes; 0 where there is no instruction for bytes.
double product_rate(int whole, double seconds) {
    double done = 0;
    const double began = now();
#if defined(__AVX512F__)
    constexpr int LANES = 16;
#elif defined(__AVX__)
    constexpr int LANES = 8;
#else
    constexpr int LANES = 4;
#endif
    if (whole) {
#if defined(__AMX_INT8__)
        const struct alignas(64) {
            uint8_t palette = 1, start = 0, reserved[14] = {};
            uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
            uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
        } shape;
        if (syscall(SYS_arch_prctl, 0x1023, 18)) return 0;  // asks for the use of tiles
        __asm__ volatile("" ::"r"(&shape) : "memory");
        _tile_loadconfig(&shape);
        for (; now() - began < seconds; done += double(ROUNDS) * 4 * 16 * 16 * 64)
            for (int round = 0; round < ROUNDS; ++round) {  // four sums: as in the kernels
                _tile_dpbusd(0, 4, 6);
                _tile_dpbusd(1, 4, 7);
                _tile_dpbusd(2, 5, 6);
                _tile_dpbusd(3, 5, 7);
            }
        _tile_release();
#elif defined(__AVX512VNNI__)
        __m512i sums[CHAINS] = {}, a = _mm512_set1_epi32(1), b = _mm512_set1_epi32(2);
        for (; now() - began < seconds; done += double(ROUNDS) * CHAINS * 64)
            for (int round = 0; round < ROUNDS; ++round)
                for (int i = 0; i < CHAINS; ++i) {
                    sums[i] = _mm512_dpbusd_epi32(sums[i], a, b);
                    __asm__ volatile("" : "+v"(sums[i]));
                }
#else
        return 0;
#endif
    } else {
        typedef float Vector __attribute__((vector_size(4 * LANES)));
        Vector sums[CHAINS] = {}, a = Vector{} + 1e-9f;
        for (; now() - began < seconds; done += double(ROUNDS) * CHAINS * LANES)
            for (int round = 0; round < ROUNDS; ++round)
                for (int i = 0; i < CHAINS; ++i) {
                    sums[i] += a * a;
                    __asm__ volatile("" : "+x"(sums[i]));
                }
    }
    return done / (now() - began);
}
}
