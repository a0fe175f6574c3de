"""Every refusal says what is wrong, the limit and what to do, in words that need to be read only once."""

from __future__ import annotations

import re

from tests.refusals.collector import messages, messages_in

RIDDLES = (  # what people had to read twice, with what to write instead; add to it what you had to read twice
    r"as many as (it )?may\b",  # "expected at most 8"
    r"as there is room\b",  # "no more than the queue has free, now 3 of 8"
    r"\bleaves? free\b",  # likewise
    r"\blets(;|$)",  # "limit of 8 waiting requests reached"
    r"\bcome again\b",  # "retry in 3.0 s"
    r"\bmeans nothing\b",  # "unknown option"
    r"\bas \w+ must be\b",  # say how
    r"expected some left\b",  # "expected at least one"
    r"\bmay stop\b",  # "ends the output"
    r"\bthe one that is served\b",  # "the served model"
    r"\bas the last \w+ said\b",  # name the field
    r"\bnot said \w",  # "until its Done"
    r"\btook (nothing\b|this one)",  # "read nothing for 30 s", "superseded by a newer stream"
    r"\bno more are taken\b",  # "limit of 8 peers reached"
    r"\bfit together\b",  # say which part is wrong
    r"\bbelieved\b",  # "trusted"
    r"\bgood as it could be\b",  # "degraded", and the reason
    r"\bshall be\b",  # "has to be"
    r"\bhas no numbers\b",  # "has shape (0, 4)"
    r"\bhands\b",  # "passes"
    r"\btold\b",  # "given", "set"
    r"\bwhoever\b",  # "any user"
    r"\bnobody\b",  # say who does not
    r"\bbehind\b",  # "after"
    r"\bnot alike\b",  # say in what they differ
    r"\bhas nothing for\b",  # "has no entry for"
    r"; known (is|are)\b",  # "expected one of"
    r"\bis known with\b",  # "is only supported with"
    r"\bthere is no [\w+]+$",  # "g++ is not installed"
    r"\bmay not be written\b",  # "is not writable"
    r"\bmust be below\b",  # "expected less than"
)


def test_alternatives_are_messages_of_their_own() -> None:
    source = """
HINT = "choose another"
def listen(port, why):
    if why:
        problem = f"port {port:d} {why}"
    else:
        problem = "no port" if port is None else f"port {port} is " + "in use"
    raise FatalError(f"--port: {problem}; {HINT}")
def give_up(problem):
    raise Refused(Code.ABORTED, f"it {problem}: " + HINT, 1000)
"""
    texts = [(message.kind, message.text) for message in messages_in(source, "listen.py")]
    assert texts == [
        ("FatalError", "--port: port {port} {why}; choose another"),
        ("FatalError", "--port: no port; choose another"),
        ("FatalError", "--port: port {port} is in use; choose another"),
        ("Refused ABORTED", "it {problem}: choose another"),
    ]


def test_no_refusal_of_any_room_is_a_riddle() -> None:
    page, riddle = messages(), re.compile("|".join(RIDDLES))
    assert len(page) > 500
    for room in ("engine_core/", "services/engine", "services/cli/commands", "clients/python/ringline"):
        assert any(message.room.startswith(room) for message in page), room
    assert not [f"{message.file}: {message.text}" for message in page if riddle.search(message.text)]
