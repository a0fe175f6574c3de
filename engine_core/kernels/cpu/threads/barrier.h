// A barrier among a host's ranks, in shared memory: for processes what threads/team.h is for threads.
//
// Each rank arrives; the last one begins the next round. The others spin for about as long as a wake-up takes, then sleep.
// Waiting ranks check now and then whether one has failed, since none may be left to wake them.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <climits>
#include <cstddef>
#include <cstring>

#include "interface.h"
#include "threads/memory.h"

namespace {

constexpr int kSpinsForRanks = 1 << 10;           // about 30 µs
constexpr long kNanosecondsOfSleep = 20'000'000;  // between checks

// A rank's call, which must be equal on all ranks, so that they agree on the memory's layout; and its bits for the others.
struct RankCall {
    int64_t place, rows, output_stride, layout;
    int64_t held[4];
};
static_assert(sizeof(RankCall) == kCacheLine && sizeof(RinglineRanks) <= kCacheLine, "no two ranks write to a line");

inline bool same(const RankCall& a, const RankCall& b) { return std::memcmp(&a, &b, offsetof(RankCall, held)) == 0; }

// Two per rank, in turn: a rank reads a round's calls while others may be in the next round, but not beyond.
inline RankCall& call_of(RinglineRanks* ranks, int rank, uint32_t round) {
    return reinterpret_cast<RankCall*>(reinterpret_cast<char*>(ranks) + kCacheLine)[2 * rank + (round & 1)];
}

inline long futex(int32_t* word, int operation, int32_t value, const timespec* timeout) {
    return syscall(SYS_futex, word, operation, value, timeout, nullptr, 0);  // not private: between processes
}

// Wait; returns true once the round has ended, false if a rank failed.
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

// Returns once all ranks have called it. All can then read what each wrote before. `held`: this rank's bits, which
// become the OR of all ranks'; or null.
inline int meet(RinglineRanks* ranks, int rank, int size, RankCall call, int64_t* held) {
    if (__atomic_load_n(&ranks->aborted, __ATOMIC_RELAXED)) return kRinglineRankFailed;
    const int32_t round = __atomic_load_n(&ranks->round, __ATOMIC_RELAXED);  // cannot end before this rank arrives
    if (held) std::memcpy(call.held, held, sizeof call.held);
    call_of(ranks, rank, round) = call;
    if (__atomic_add_fetch(&ranks->arrived, 1, __ATOMIC_ACQ_REL) == size) {
        __atomic_store_n(&ranks->arrived, 0, __ATOMIC_RELAXED);
        // Either a rank counts as sleeping here, or the system sees the new round before it lets it sleep.
        __atomic_store_n(&ranks->round, static_cast<int32_t>(static_cast<uint32_t>(round) + 1), __ATOMIC_SEQ_CST);
        if (__atomic_load_n(&ranks->sleepers, __ATOMIC_SEQ_CST)) futex(&ranks->round, FUTEX_WAKE, INT_MAX, nullptr);
    } else if (!wait_for_ranks(ranks, round)) {
        return kRinglineRankFailed;
    }
    for (int other = 0; other < size; ++other) {
        const RankCall& its = call_of(ranks, other, round);
        if (!same(its, call)) {
            __atomic_store_n(&ranks->aborted, 1, __ATOMIC_RELAXED);
            return kRinglineRanksDisagree;
        }
        for (int word = 0; held && word < 4; ++word) held[word] |= its.held[word];
    }
    return kRinglineDone;
}

inline int barrier(const RinglineBarrier& args) {
    return meet(args.ranks, args.rank, args.size, RankCall{}, args.held);
}

}  // namespace
