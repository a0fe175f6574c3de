// Shares kernels' work among threads.
//
// Each thread takes pieces of work until none are left. So a late thread, whose processor another program may have, does
// not delay the others; and results do not depend on which thread does what.
//
// Waking a thread takes 10 to 50 µs, as long as many kernels. So while captured calls are replayed, the threads form a
// team: between kernels they spin for a short while, and sharing takes less than a microsecond.
#pragma once

using Work = void (*)(void* context, int thread);

// Call work(context, thread) on this thread, as 0, and on up to `threads` − 1 others that arrive before it is done.
void share(int threads, Work work, void* context);

// Call work(context, 0) on this thread, with a team waiting for shared work.
void lead_team(int threads, Work work, void* context);

// The number of threads for work of `nanoseconds` on one: `threads`, or 1 if sharing costs more.
int threads_worth(long nanoseconds, int threads);

namespace {

template <class F>
void call_function(void* function, int thread) {
    (*static_cast<const F*>(function))(thread);
}

// f(thread) on up to `threads` threads at once, including this one.
template <class F>
void in_parallel(int threads, const F& f) {
    if (threads <= 1) return f(0);
    share(threads, call_function<F>, const_cast<F*>(&f));
}

inline long take(long& next, long count = 1) { return __atomic_fetch_add(&next, count, __ATOMIC_RELAXED); }

// f(i) for all 0 ≤ i < count; threads take `piece` neighbours at a time.
template <class F>
void parallel_for(int threads, long count, long piece, const F& f) {
    long next = 0;
    in_parallel(threads, [&](int) {
        for (long first = take(next, piece); first < count; first = take(next, piece))
            for (long i = first; i < count && i < first + piece; ++i) f(i);
    });
}

}  // namespace
