// Exponentials.
#pragma once

namespace {

// 2^x for x < 127, exactly 1 at 0 and exactly 0 below −126; relative error 1.6e-7. NaN stays NaN.
inline Vec exp2_of(Vec x) {
    const Vec whole = round_to_integer(x);
    const Vec part = subtract(x, whole);
    Vec power = splat(0.001326472731307149f);
    power = multiply_add(power, part, splat(0.009671512991189957f));
    power = multiply_add(power, part, splat(0.05550733581185341f));
    power = multiply_add(power, part, splat(0.24022242426872253f));
    power = multiply_add(power, part, splat(0.6931470036506653f));
    power = multiply_add(power, part, splat(1.0f));
    return zero_where_less(scale_by_power(power, whole), x, splat(-126.0f));
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
