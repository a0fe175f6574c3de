"""``python -m tests.refusals [WORDS]``: every refusal on one page, to be read aloud; WORDS choose by file or text."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable
from pathlib import Path

from tests.refusals.collector import Message, messages


def page(chosen: Iterable[Message]) -> str:
    """By room, file and function."""
    lines: list[str] = []
    for room, of_room in itertools.groupby(chosen, lambda message: message.room):
        lines += ["", room]
        for (file, function), texts in itertools.groupby(of_room, lambda message: (message.file, message.function)):
            lines.append(f"  {Path(file).name} {function}")
            lines += [f"    {message.kind}: {message.text}" for message in texts]
    return "\n".join(lines[1:])


if __name__ == "__main__":
    words = " ".join(sys.argv[1:])
    print(page(message for message in messages() if words in message.file or words in message.text))
