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

inline float exp2_of(float x) {
    float lanes[kLanes];
    store(lanes, exp2_of(splat(x)));
    return lanes[0];
}

}  // namespace
