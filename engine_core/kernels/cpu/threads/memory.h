// Memory freed at the end of its scope. (Code for different instruction sets must not use templates or inline functions
// of the standard library: the linker would keep one copy of each, perhaps one that cannot run.)
#pragma once

#include <cstdlib>

namespace {

constexpr long kCacheLine = 64;

// Bytes of `count` numbers, rounded up to whole cache lines.
template <class Number>
long padded_bytes(long count) {
    return (count * static_cast<long>(sizeof(Number)) + kCacheLine - 1) / kCacheLine * kCacheLine;
}

class Buffer {
public:
    explicit Buffer(long bytes) : start_(static_cast<char*>(std::aligned_alloc(kCacheLine, padded_bytes<char>(bytes)))) {}
    ~Buffer() { std::free(start_); }
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;

    bool failed() const { return start_ == nullptr; }
    char* at(long offset) const { return start_ + offset; }

private:
    char* start_;
};

// Hands out consecutive parts of a buffer, each beginning on a cache line.
class Parts {
public:
    explicit Parts(char* start) : next_(start) {}

    template <class Number>
    Number* take(long count) {
        auto* const part = reinterpret_cast<Number*>(next_);
        next_ += padded_bytes<Number>(count);
        return part;
    }

private:
    char* next_;
};

}  // namespace
