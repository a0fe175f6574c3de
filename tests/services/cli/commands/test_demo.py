"""What the demo says of its speed."""

import pytest
from ringline import Usage

from services.cli.commands.demo import report
from services.cli.supervise.runtime_directory import ProcessState, StackState
from services.cli.supervise.stack import SERVICES


@pytest.mark.parametrize(
    ("first", "last", "tokens", "speed"), [(0.19, 0.2, 20, "100"), (0.2, 0.2, 20, "100"), (0.0, 0.0, 0, "0")]
)
def test_speed_is_of_the_whole_answer_however_its_tokens_arrived(
    first: float, last: float, tokens: int, speed: str
) -> None:
    state = StackState(1, "tiny", 0.0, "127.0.0.1:1", dict.fromkeys(SERVICES, ProcessState(2, "127.0.0.1:1", None)))
    assert f": {speed} tokens/s" in report(state, Usage(3, 0, tokens), first, last)
