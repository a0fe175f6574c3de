"""What the programs of clients share: what they ask, and how they print what they were shown."""

from __future__ import annotations

import asyncio
import inspect
import json
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

ASKED = json.loads((Path(__file__).resolve().parent / "asked.json").read_text())


def show(*subjects: Callable[[], Any]) -> None:
    """Print a line of JSON for each subject: what it returned, or how it failed. Others are tried all the same."""
    for subject in subjects:
        try:
            shown = subject()
            line = {"shown": asyncio.run(shown) if inspect.isawaitable(shown) else shown}
        except Exception:
            line = {"failed": traceback.format_exc()}
        print(json.dumps({"subject": subject.__name__, **line}, default=str, separators=(",", ":")), flush=True)
