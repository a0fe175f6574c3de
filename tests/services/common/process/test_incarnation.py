"""Each life of a process has a greater incarnation."""

import time

from services.common.process.run import new_incarnation


def test_a_later_life_is_greater():
    earlier = new_incarnation()
    time.sleep(0.002)
    assert new_incarnation() > earlier


def test_it_is_the_start_in_milliseconds_above_twenty_random_bits():
    before = time.time_ns() // 1_000_000
    incarnations = [new_incarnation() for _ in range(50)]
    after = time.time_ns() // 1_000_000
    assert all(before <= incarnation >> 20 <= after for incarnation in incarnations)
    assert len({incarnation & (2**20 - 1) for incarnation in incarnations}) > 40
    assert max(incarnations) < 2**64  # fixed64 in Hello
