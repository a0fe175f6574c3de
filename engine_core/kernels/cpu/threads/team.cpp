// See threads/team.h. (The library has one copy, compiled for any processor: it must not depend on an instruction set.)
#include "threads/team.h"

#include <omp.h>
#include <pthread.h>

#include <cstdint>

namespace {

constexpr long kWorthTeam = 2'000, kWorthWaking = 40'000;  // nanoseconds of work, for threads that spin or sleep
constexpr int kSpins = 1 << 10;                            // about 30 µs: as long as a wake-up takes

void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// One thread leads; the others serve until dismissed. The state is one number: the round, whether it is open, and the
// number of threads inside. A thread that enters an open round does its work; a round ends when it is closed and no
// thread is inside.
class Team {
public:
    ~Team() {
        pthread_cond_destroy(&news_);
        pthread_mutex_destroy(&mutex_);
    }

    void share(Work work, void* context) {
        work_ = work;
        context_ = context;
        announce((state() + kRound) | kOpen);
        work(context, 0);
        __atomic_fetch_and(&state_, ~kOpen, __ATOMIC_SEQ_CST);
        wait_until([this] { return !(state() & kInside); });
    }

    void dismiss() { announce(kDismissed); }

    void serve(int thread) {
        for (uint64_t seen = 0; (seen = next_round(seen)) != kDismissed;) {
            if (!enter(seen)) continue;
            work_(context_, thread);
            if (!(__atomic_sub_fetch(&state_, 1, __ATOMIC_SEQ_CST) & kInside)) wake();
        }
    }

private:
    static constexpr uint64_t kInside = 0xffff, kOpen = 1 << 16, kRound = 1 << 17, kDismissed = ~kInside;

    uint64_t state() const { return __atomic_load_n(&state_, __ATOMIC_SEQ_CST); }
    static uint64_t round_of(uint64_t state) { return state == kDismissed ? state : state & ~(kOpen | kInside); }

    void announce(uint64_t state) {
        __atomic_store_n(&state_, state, __ATOMIC_SEQ_CST);
        wake();
    }

    // Wait for the round after `seen`.
    uint64_t next_round(uint64_t seen) {
        wait_until([&] { return round_of(state()) != seen; });
        return round_of(state());
    }

    // Spin, then sleep, which frees this processor for a waiting thread.
    template <class Condition>
    void wait_until(const Condition& met) {
        for (int spins = 0; spins < kSpins; ++spins, relax())
            if (met()) return;
        pthread_mutex_lock(&mutex_);
        __atomic_fetch_add(&sleeping_, 1, __ATOMIC_SEQ_CST);
        while (!met()) pthread_cond_wait(&news_, &mutex_);
        __atomic_fetch_sub(&sleeping_, 1, __ATOMIC_SEQ_CST);
        pthread_mutex_unlock(&mutex_);
    }

    // Make sleeping threads check the state again. Either they count as sleeping here, or they see the new state.
    void wake() {
        if (__atomic_load_n(&sleeping_, __ATOMIC_SEQ_CST) == 0) return;
        pthread_mutex_lock(&mutex_);
        pthread_cond_broadcast(&news_);
        pthread_mutex_unlock(&mutex_);
    }

    bool enter(uint64_t round) {
        for (uint64_t now = state(); round_of(now) == round && (now & kOpen);)
            if (__atomic_compare_exchange_n(&state_, &now, now + 1, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) return true;
        return false;
    }

    alignas(64) uint64_t state_ = 0;
    alignas(64) int sleeping_ = 0;
    Work work_ = nullptr;
    void* context_ = nullptr;
    pthread_mutex_t mutex_ = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t news_ = PTHREAD_COND_INITIALIZER;
};

thread_local Team* team = nullptr;  // led by this thread

}  // namespace

void share(int threads, Work work, void* context) {
    if (team) return team->share(work, context);
#pragma omp parallel num_threads(threads)
    work(context, omp_get_thread_num());
}

void lead_team(int threads, Work work, void* context) {
    if (threads <= 1) return work(context, 0);
    Team own;
#pragma omp parallel num_threads(threads)
    if (omp_get_thread_num() == 0) {
        team = &own;
        work(context, 0);
        team = nullptr;
        own.dismiss();
    } else {
        own.serve(omp_get_thread_num());
    }
}

int threads_worth(long nanoseconds, int threads) {
    return nanoseconds < (team ? kWorthTeam : kWorthWaking) ? 1 : threads;
}
