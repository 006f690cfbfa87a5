// Memory for weights, and prefetching it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <new>
#if defined(__linux__)
#include <sys/mman.h>
#endif

#include <algorithm>

namespace {

using Memory = std::shared_ptr<char>;

// Uninitialised, next to what was allocated before: small weights share huge pages, too, for fewer TLB misses, and because lines
// of scattered small pages evict each other from the second-level cache. Throws std::bad_alloc.
inline Memory allocate(size_t bytes) {
    bytes = (bytes + 63) / 64 * 64;
#if defined(__linux__)
    constexpr size_t page = 1 << 21, usual = 64 << 20;  // reserved; pages that are never touched take no memory
    static std::mutex mutex;
    static std::weak_ptr<char> region;
    static size_t used, size;
    const std::lock_guard lock(mutex);
    Memory all = region.lock();
    if (!all || size - used < bytes) {
        size = std::max(usual, (bytes + page - 1) / page * page), used = 0;
        const size_t mapping = size + page;
        void* mapped = mmap(nullptr, mapping, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (mapped == MAP_FAILED) throw std::bad_alloc();
        char* first = reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(mapped) + page - 1) / page * page);
        all.reset(first, [=](char*) { munmap(mapped, mapping); });
        madvise(first, size, MADV_HUGEPAGE);
        region = all;
    }
    used += bytes;
    return Memory(all, all.get() + used - bytes);
#else
    char* memory = static_cast<char*>(std::aligned_alloc(64, bytes));
    if (!memory) throw std::bad_alloc();
    return Memory(memory, std::free);
#endif
}

// Weights are read sequentially, but hardware prefetching stops at each page, and a product with many rows outruns it: without
// these instructions it takes up to 20 % longer. With few rows AMD's hardware does better alone: they cost 3 to 20 % of a pass on
// Zen 4.
constexpr int AHEAD = 2048, FAR_AHEAD = 4096;  // distances in bytes, for few and for many rows
#if defined(__x86_64__)
const bool PREFETCHES = (__builtin_cpu_init(), !__builtin_cpu_is("amd"));  // with few rows, too
#else
constexpr bool PREFETCHES = true;
#endif

template <int SIZE>
inline void prefetch(const void* from, int ahead) {
    for (int line = 0; line < SIZE; line += 64) __builtin_prefetch(static_cast<const char*>(from) + ahead + line);
}

// Makes room for at least so many in memory that is reused.
template <class Some>
inline void grow(Some& some, size_t size) {
    if (some.size() < size) some.resize(size);
}

}  // namespace
