"""What the demo says of its speed."""

import pytest

from services.cli.commands.demo import _Timing


def test_speed_is_of_the_whole_answer_however_its_tokens_arrived() -> None:
    assert _Timing(first_token=0.19, last_token=0.2).tokens_per_second(20) == pytest.approx(100)
    assert _Timing(first_token=0.2, last_token=0.2).tokens_per_second(20) == pytest.approx(100)
    assert _Timing(first_token=0.0, last_token=0.0).tokens_per_second(0) == 0
