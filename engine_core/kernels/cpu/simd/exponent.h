// Exponentials.
#pragma once

namespace {

// 2^(whole + part), for integers `whole` and |part| ≤ 1/2; exactly 1 at 0.
inline Vec exp2_of_parts(Vec whole, Vec part) {
    Vec power = splat(0.001326472731307149f);
    power = multiply_add(power, part, splat(0.009671512991189957f));
    power = multiply_add(power, part, splat(0.05550733581185341f));
    power = multiply_add(power, part, splat(0.24022242426872253f));
    power = multiply_add(power, part, splat(0.6931470036506653f));
    power = multiply_add(power, part, splat(1.0f));
    return scale_by_power(power, whole);
}

// 2^x for x < 127, exactly 1 at 0 and exactly 0 below −126; relative error 1.6e-7. NaN stays NaN.
inline Vec exp2_of(Vec x) {
    const Vec whole = round_to_integer(x);
    return zero_where_less(exp2_of_parts(whole, subtract(x, whole)), x, splat(-126.0f));
}

// eˣ for x < 88, exactly 1 at 0 and exactly 0 below −87; relative error 3e-7, also where x · log2(e) would round too
// coarsely for it. NaN stays NaN.
inline Vec exp_of(Vec x) {
    const Vec log2_e = splat(1.44269504088896340736f);
    const Vec whole = round_to_integer(multiply(x, log2_e));
    // ln 2 in two parts; products of the first, which has few bits, are exact.
    Vec part = multiply_add(whole, splat(-0.693359375f), x);
    part = multiply_add(whole, splat(2.12194440e-4f), part);
    return zero_where_less(exp2_of_parts(whole, multiply(part, log2_e)), x, splat(-87.0f));
}

// log(1 + eˣ) = max(x, 0) + log(1 + t) with t = e^−|x|, and log(1 + t) = 2 · atanh(t / (2 + t)); relative error 5e-7,
// exactly 0 below −87. NaN stays NaN.
inline Vec softplus_of(Vec x) {
    const Vec zero = splat(0.0f);
    const Vec t = exp_of(subtract(zero, maximum_of(subtract(zero, x), x)));
    const Vec s = divide(t, add(splat(2.0f), t)), square = multiply(s, s);
    Vec series = splat(0.11619438976049423f);  // (atanh(s) / s − 1) / s²
    series = multiply_add(series, square, splat(0.10851678997278214f));
    series = multiply_add(series, square, splat(0.14296290278434753f));
    series = multiply_add(series, square, splat(0.19999851286411285f));
    series = multiply_add(series, square, splat(0.3333333432674408f));
    const Vec half = multiply_add(multiply(series, square), s, s);
    return add(maximum_of(zero, x), add(half, half));
}

// tanh x = −t / (2 + t) with t = e⁻²ˣ − 1, for |x|, and the sign of x; relative error 2.5e-7. NaN stays NaN.
inline Vec tanh_of(Vec x) {
    const Vec zero = splat(0.0f), size = maximum_of(subtract(zero, x), x);
    // Below 2⁻³⁰, e⁻²ˣ no longer matters.
    const Vec power = maximum_of(splat(-30.0f), multiply(size, splat(-2.0f * 1.44269504088896340736f)));
    const Vec whole = round_to_integer(power), part = subtract(power, whole);
    Vec slope = splat(0.00015403512225020677f);  // (2^part − 1) / part
    slope = multiply_add(slope, part, splat(0.0013390735257416964f));
    slope = multiply_add(slope, part, splat(0.009618237614631653f));
    slope = multiply_add(slope, part, splat(0.05550357326865196f));
    slope = multiply_add(slope, part, splat(0.24022649228572845f));
    slope = multiply_add(slope, part, splat(0.6931471824645996f));
    const Vec factor = scale_by_power(splat(1.0f), whole);
    const Vec t = multiply_add(multiply(slope, part), factor, subtract(factor, splat(1.0f)));
    const Vec y = subtract(zero, divide(t, add(splat(2.0f), t)));
    const Vec positive = zero_where_less(y, x, zero);
    return add(positive, subtract(positive, y));
}

inline float exp2_of(float x) {
    float lanes[kLanes];
    store(lanes, exp2_of(splat(x)));
    return lanes[0];
}

}  // namespace
