// Ranks of one host wait for each other, in memory that they share: between processes what team.h is between threads.
//
// Each rank arrives; the last one begins the next round. The others wait busily, for about as long as a rank takes to
// wake, then asleep. Whoever waits looks now and then whether a rank has failed, which nobody may be left to tell it.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <climits>
#include <cstring>

#include "interface.h"
#include "memory.h"

namespace {

constexpr int kSpinsForRanks = 1 << 10;              // about 30 µs
constexpr long kNanosecondsOfSleep = 20'000'000;  // between two looks

// What a rank calls: the same on all, or what one writes is not what another reads.
struct RankCall {
    int64_t place, rows, output_stride, layout;
};
static_assert(2 * sizeof(RankCall) == kCacheLine && sizeof(RinglineRanks) <= kCacheLine, "a cache line for each rank");

// Two of each rank, in turn: a rank reads those of a round while others may be in the next, but not in the one after.
inline RankCall& call_of(RinglineRanks* ranks, int rank, uint32_t round) {
    return reinterpret_cast<RankCall*>(reinterpret_cast<char*>(ranks) + (1 + rank) * kCacheLine)[round & 1];
}

inline long futex(int32_t* word, int operation, int32_t value, const timespec* timeout) {
    return syscall(SYS_futex, word, operation, value, timeout, nullptr, 0);  // not private: between processes
}

// Whether the round has ended, rather than that a rank has failed.
inline bool wait_for_ranks(RinglineRanks* ranks, int32_t round) {
    const auto ended = [&] { return __atomic_load_n(&ranks->round, __ATOMIC_ACQUIRE) != round; };
    const auto aborted = [&] { return __atomic_load_n(&ranks->aborted, __ATOMIC_RELAXED) != 0; };
    for (int spins = 0; spins < kSpinsForRanks; ++spins) {
        if (ended()) return true;
        if (aborted()) return false;
#if defined(__x86_64__)
        __builtin_ia32_pause();
#elif defined(__aarch64__)
        asm volatile("yield");
#endif
    }
    const timespec sleep{0, kNanosecondsOfSleep};
    __atomic_fetch_add(&ranks->sleepers, 1, __ATOMIC_SEQ_CST);
    while (!ended() && !aborted()) futex(&ranks->round, FUTEX_WAIT, round, &sleep);
    __atomic_fetch_sub(&ranks->sleepers, 1, __ATOMIC_SEQ_CST);
    return ended();
}

// Returns once all ranks have called it. What each has written before, all can read after.
inline int meet(RinglineRanks* ranks, int rank, int size, const RankCall& call) {
    if (__atomic_load_n(&ranks->aborted, __ATOMIC_RELAXED)) return kRinglineRankFailed;
    const int32_t round = __atomic_load_n(&ranks->round, __ATOMIC_RELAXED);  // which does not end before this rank arrives
    call_of(ranks, rank, round) = call;
    if (__atomic_add_fetch(&ranks->arrived, 1, __ATOMIC_ACQ_REL) == size) {
        __atomic_store_n(&ranks->arrived, 0, __ATOMIC_RELAXED);
        // Either a rank is counted as sleeping here, or the system finds that the round has ended before it lets it sleep.
        __atomic_store_n(&ranks->round, static_cast<int32_t>(static_cast<uint32_t>(round) + 1), __ATOMIC_SEQ_CST);
        if (__atomic_load_n(&ranks->sleepers, __ATOMIC_SEQ_CST)) futex(&ranks->round, FUTEX_WAKE, INT_MAX, nullptr);
    } else if (!wait_for_ranks(ranks, round)) {
        return kRinglineRankFailed;
    }
    for (int other = 0; other < size; ++other) {
        if (std::memcmp(&call_of(ranks, other, round), &call, sizeof(RankCall)) == 0) continue;
        __atomic_store_n(&ranks->aborted, 1, __ATOMIC_RELAXED);
        return kRinglineRanksDisagree;
    }
    return kRinglineDone;
}

inline int barrier(const RinglineBarrier& args) { return meet(args.ranks, args.rank, args.size, RankCall{}); }

}  // namespace
