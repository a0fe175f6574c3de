// Threads that share the work of kernels.
//
// Each thread takes pieces of work until none are left. So a thread that is late, perhaps because another program has its
// processor, does not delay the others; and results do not depend on which thread does what.
//
// To wake a thread takes 10 to 50 µs, as long as many a kernel. So while captured calls are replayed, the threads form a
// team: between kernels they wait busily, for a short while, and sharing takes less than a microsecond.
#pragma once

using Work = void (*)(void* context, int thread);

// Call work(context, thread) on this thread, as 0, and on up to `threads` − 1 others, if they come before it is done.
void share(int threads, Work work, void* context);

// Call work(context, 0) on this thread, with a team that waits for what it shares.
void lead_team(int threads, Work work, void* context);

// How many threads should share work that takes `nanoseconds` on one of them: `threads`, or 1 if sharing costs more.
int threads_worth(long nanoseconds, int threads);

namespace {

template <class F>
void call_function(void* function, int thread) {
    (*static_cast<const F*>(function))(thread);
}

// f(thread) on some threads at once, at least on this one.
template <class F>
void in_parallel(int threads, const F& f) {
    if (threads <= 1) return f(0);
    share(threads, call_function<F>, const_cast<F*>(&f));
}

inline long take(long& next, long count = 1) { return __atomic_fetch_add(&next, count, __ATOMIC_RELAXED); }

// f(i) for all 0 ≤ i < count, each thread taking `piece` neighbours at a time.
template <class F>
void parallel_for(int threads, long count, long piece, const F& f) {
    long next = 0;
    in_parallel(threads, [&](int) {
        for (long first = take(next, piece); first < count; first = take(next, piece))
            for (long i = first; i < count && i < first + piece; ++i) f(i);
    });
}

}  // namespace
