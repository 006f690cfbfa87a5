// Threads that run a pass together and meet at barriers. They spin while they wait, because a phase takes microseconds.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

namespace {

inline void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

// The calling thread is member 0; the others sleep between calls of `run`.
class Team {
  public:
    explicit Team(int size) : size(size) {
        try {
            for (int member = 1; member < size; ++member) workers.emplace_back([this, member] { serve(member); });
        } catch (...) {  // no more threads: those that have started must end before the exception goes on
            stop();
            throw;
        }
    }
    ~Team() { stop(); }
    // Calls task(member) on every thread; returns when all have returned.
    template <class Task>
    void run(Task&& task) {
        if (size == 1) return task(0);
        job = [&](int member) { task(member); };
        begin();
        task(0);
        sync();
    }
    // A barrier: returns when every member has called it.
    void sync() {
        if (size == 1) return;
        unsigned turn = round.load(std::memory_order_relaxed);
        if (arrived.fetch_add(1, std::memory_order_acq_rel) == size - 1) {
            arrived.store(0, std::memory_order_relaxed);
            round.store(turn + 1, std::memory_order_release);
        } else {
            for (int spins = 0; round.load(std::memory_order_acquire) == turn;)
                if (++spins < SPINS_AT_BARRIER)
                    pause();
                else
                    std::this_thread::yield();
        }
    }
    const int size;

  private:
    // Pauses (some 15 ns each) before a waiting thread gives its core away: at a barrier for the others are about to arrive, and
    // between passes for as long as the caller usually takes to start the next one.
    static constexpr int SPINS_AT_BARRIER = 4000, SPINS_BETWEEN_PASSES = 20000;

    void begin() {
        if (size == 1) return;
        calls.fetch_add(1, std::memory_order_release);
        calls.notify_all();
    }
    void stop() {
        job = nullptr;
        begin();
        for (auto& worker : workers) worker.join();
    }
    void serve(int member) {
        for (unsigned seen = 0;; ++seen) {
            for (int spins = 0; calls.load(std::memory_order_acquire) == seen && spins < SPINS_BETWEEN_PASSES; ++spins) pause();
            calls.wait(seen, std::memory_order_acquire);
            if (!job) return;
            job(member);
            sync();
        }
    }
    std::function<void(int)> job;
    std::vector<std::thread> workers;
    std::atomic<unsigned> calls{0}, round{0};
    std::atomic<int> arrived{0};
};

struct Range {
    int from, to;
};
// The part of 0 .. total that falls to one member of a team.
inline Range share(int total, int member, int size) {
    return {int(int64_t(total) * member / size), int(int64_t(total) * (member + 1) / size)};
}

}  // namespace
