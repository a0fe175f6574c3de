"""What the demo says of its speed, and of what comes after a service is killed."""

import asyncio
import re
from collections.abc import AsyncIterator

import pytest
from ringline import Usage

from services.cli.commands import demo
from services.cli.commands.demo import Answer, report
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


ON_ITS_WAY = "  What was on its way still arrives:\n\n"
PAUSE = "\n\n  the stream waits"


@pytest.mark.parametrize(
    ("coming", "shown"),
    [
        (["two", 12, "three"], [ON_ITS_WAY, "two", PAUSE, "is process 12 now", "three"]),
        ([12, "two", "three"], [PAUSE, "is process 12 now", "two", "three"]),
        ([11, "two", 12, "three"], [PAUSE, ON_ITS_WAY, "two", PAUSE, "is process 12 now", "three"]),
        (["two", "three"], [ON_ITS_WAY, "two", "three"]),
    ],
)
async def test_what_was_on_its_way_is_told_from_what_the_new_process_sends(
    coming: list[str | int], shown: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A number: a pause, after which the service has that pid."""
    said, pid, paused = "", 11, asyncio.Event()

    def say(text: str, nl: bool = True) -> None:
        nonlocal said
        said += text + "\n" * nl
        if text.startswith(PAUSE):
            paused.set()

    async def texts() -> AsyncIterator[str]:
        nonlocal pid
        yield "one"
        for each in coming:
            if isinstance(each, str):
                yield each
                continue
            paused.clear()
            await paused.wait()
            pid = each

    monkeypatch.setattr(demo, "_TICK", 0.001)
    monkeypatch.setattr(demo, "_pid", lambda service: pid)
    monkeypatch.setattr("os.kill", lambda pid, signal: None)
    monkeypatch.setattr("click.echo", say)
    waited = await demo._show(texts(), "engine", [Answer(0)], 0, 60.0)
    assert waited is (12 in coming)
    beginning, *parts = re.split(f"({'|'.join(map(re.escape, dict.fromkeys(shown)))})", said)
    assert beginning == "one\n\n  kill -9 11: the engine is dead\n"
    assert parts[::2] == shown
