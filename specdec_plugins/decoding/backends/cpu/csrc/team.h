// A team of threads that runs a pass together and meets at barriers, and the choice of its size on a busy machine.
//
// A phase between two barriers takes microseconds, so waiting members spin. A pass has some fifty barriers, and a preempted
// member delays all others for milliseconds at any of them. While that happens often, fewer members take part. Results do not
// depend on their number.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <ctime>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;
using Duration = Clock::duration;
using namespace std::chrono_literals;

inline void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

// Spins until `word` is not `old`, calling `idle`. Gives up after about `limit`, measured by the clock: a pause takes 15 ns on
// some CPUs and 60 on others.
template <class Idle>
inline bool changes(const std::atomic<unsigned>& word, unsigned old, Duration limit, Idle&& idle) {
    constexpr int TURNS = 16;  // between two looks at the clock
    for (Clock::time_point end{};;) {
        for (int turn = 0; turn < TURNS; ++turn, idle())
            if (word.load(std::memory_order_acquire) != old) return true;
        const auto now = Clock::now();
        if (end == Clock::time_point{}) end = now + limit;
        if (now >= end) return false;
    }
}

// CPU time of the calling thread.
inline Duration core_time() {
    timespec time;
    return clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time) ? 0ns : std::chrono::seconds(time.tv_sec) + 1ns * time.tv_nsec;
}

// The number of members that take part. If stalls take more than a quarter of the time, it drops by one, for four times the last
// period. After a quiet period it rises by one, for half of it. Under lasting load, attempts thus become rare.
class Attendance {
  public:
    explicit Attendance(int all) : all(all), size(all) {}
    // Call after a run, with the time that it lost. Returns the number of members for the next run.
    int next(Duration lost, Duration elapsed, Clock::time_point now) {
        excess = std::max(excess + lost - elapsed / 4, Duration{});  // a member brings more than a quarter
        const bool fewer = excess > (period == SHORTEST ? TOLERATED : TOLERATED / 4);  // an attempt ends at its first stall
        if (!fewer && now < until) return size;
        if (fewer) excess = {};
        size = fewer ? std::max(size - 1, 1) : std::min(size + 1, all);
        period = fewer ? std::min(4 * period, LONGEST) : std::max(period / 2, SHORTEST);
        until = now + period;
        return size;
    }

  private:
    // A stall lasts one or two time slices of about 3 ms. At first a single one changes nothing. An attempt costs less than 1 %
    // of LONGEST.
    static constexpr Duration TOLERATED = 4ms, SHORTEST = 4ms, LONGEST = 1s;
    int all, size;
    Duration excess{};  // lost beyond a quarter of the time
    Duration period = SHORTEST;
    Clock::time_point until{};
};

// The calling thread is member 0; the others sleep between calls of `run`.
class Team {
  public:
    explicit Team(int all) : size(all), attendance(all), workers(all - 1) {
        try {
            for (int member = 1; member < all; ++member)
                workers[member - 1].thread = std::thread([this, member] { serve(member); });
        } catch (...) {  // no more threads: end those that have started before passing the exception on
            stop();
            throw;
        }
    }
    ~Team() { stop(); }
    // Calls task(member) on every thread that takes part; returns when all have returned.
    template <class Task>
    void run(Task&& task) {
        if (workers.empty()) return task(0);
        began = Clock::now();
        if (size == 1) {
            task(0);
        } else {
            job = [&](int member) { task(member); };
            for (int member = 1; member < size; ++member) wake(workers[member - 1]);
            work(0);
        }
        const auto now = Clock::now();
        size = attendance.next(std::exchange(lost, {}), now - began, now);
    }
    // A barrier: returns when every member has called it.
    void sync() {
        const int expected = size;  // read before the others may leave
        if (expected == 1) return;
        const unsigned turn = round.load(std::memory_order_relaxed);
        if (arrived.fetch_add(1, std::memory_order_acq_rel) == expected - 1) {
            if (late.exchange(false, std::memory_order_relaxed)) account();
            arrived.store(0, std::memory_order_relaxed);
            round.fetch_add(1);  // sequentially consistent, because `notify_all` looks for sleepers next
            round.notify_all();
        } else if (!changes(round, turn, LATE, pause)) {
            late.store(true, std::memory_order_relaxed);
            if (changes(round, turn, AWAKE, std::this_thread::yield)) return;
            const auto from = Clock::now();
            round.wait(turn, std::memory_order_acquire);
            own.slept += std::max(released.load(std::memory_order_relaxed) - from, Duration{});
        }
    }
    int size;  // members that take part in a run: it changes when `run` returns

  private:
    // At a barrier a member spins for LATE, which exceeds the differences between phases. Then it yields its core, perhaps to the
    // late member. It sleeps only after another AWAKE: waking takes about 30 us on a virtual machine, often far longer, and the
    // others would wait for that. Between runs it does not yield, because it would return only after others' time slices and
    // usually miss the start of the next run; it sleeps after AWAKE.
    static constexpr Duration LATE = 200us, AWAKE = 1ms;

    struct alignas(64) Worker {
        std::atomic<unsigned> calls{0};
        std::thread thread;
    };
    // One thread's part of the current run.
    struct Times {
        Duration on_core;  // `core_time` at its start
        Duration slept;    // at barriers, waiting for others
    };
    static inline thread_local Times own;

    static void wake(Worker& worker) {
        worker.calls.fetch_add(1);
        worker.calls.notify_one();
    }
    void stop() {
        job = nullptr;
        for (Worker& worker : workers)
            if (worker.thread.joinable()) wake(worker), worker.thread.join();
    }
    void serve(int member) {
        std::atomic<unsigned>& calls = workers[member - 1].calls;
        for (unsigned seen = 0;; ++seen) {
            if (!changes(calls, seen, AWAKE, pause)) calls.wait(seen, std::memory_order_acquire);
            if (!job) return;
            work(member);
        }
    }
    void work(int member) {
        own = {core_time(), {}};
        job(member);
        sync();
    }
    // Called by the last to arrive at a barrier, if others waited long: it had much work, or no core.
    void account() {
        const auto now = Clock::now();
        lost = std::max(lost, now - began - (core_time() - own.on_core) - own.slept);
        released.store(now, std::memory_order_relaxed);
    }

    std::function<void(int)> job;
    Attendance attendance;
    std::vector<Worker> workers;
    Clock::time_point began{};  // this run
    std::atomic<Clock::time_point> released{};  // end of the last barrier with a late member
    std::atomic<unsigned> round{0};
    std::atomic<int> arrived{0};
    std::atomic<bool> late{false};  // a member is late for this barrier
    Duration lost{};  // longest time a member had no core in this run; only the last to arrive at a barrier writes
};

struct Range {
    int from, to;
};
// One member's part of 0 .. total.
inline Range portion(int total, int member, int size) {
    return {int(int64_t(total) * member / size), int(int64_t(total) * (member + 1) / size)};
}

}  // namespace
