"""What these tests compute on: a GPU or, in a rehearsal (``--device cpu``), this machine under Triton's interpreter."""

from __future__ import annotations

import os
from typing import TypeVar

import pytest
import torch

_T = TypeVar("_T")

ON_CARD = os.environ.get("TRITON_INTERPRET") != "1"
DEVICE = torch.device("cuda", 0) if ON_CARD else torch.device("cpu")
PROCESSORS = 132 if ON_CARD else 2
WIDE = pytest.mark.wide
needs_card = pytest.mark.skipif(not ON_CARD, reason="an interpreter has no memory or stream of its own to look at")


def sized(on_card: _T, rehearsed: _T) -> _T:
    """The one for a card, or the one that an interpreter computes in seconds."""
    return on_card if ON_CARD else rehearsed
