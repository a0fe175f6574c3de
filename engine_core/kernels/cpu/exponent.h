// Powers of two.
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

// (1 − e⁻²ˣ) / (1 + e⁻²ˣ) with the sign of x; absolute error 2e-7. NaN stays NaN.
inline Vec tanh_of(Vec x) {
    const Vec zero = splat(0.0f), size = maximum_of(subtract(zero, x), x);
    const Vec power = exp2_of(multiply(size, splat(-2.0f * 1.44269504088896340736f)));
    const Vec y = divide(subtract(splat(1.0f), power), add(splat(1.0f), power));
    const Vec positive = zero_where_less(y, x, zero);
    return add(positive, subtract(positive, y));
}

inline float exp2_of(float x) {
    float lanes[kLanes];
    store(lanes, exp2_of(splat(x)));
    return lanes[0];
}

}  // namespace
