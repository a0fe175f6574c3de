"""Positions, end to end: where a delta's tokens fall relative to what a receiver already has."""

from __future__ import annotations

import enum


class Fit(enum.Enum):
    """How a delta of one choice relates to the receiver's count of that choice."""

    NEXT = "next"
    """It begins exactly at the count."""
    OLD = "old"
    """All of it is already there; it is dropped."""
    OVERLAP = "overlap"
    """It begins below the count and reaches beyond it; ids can be clipped, text cannot."""
    GAP = "gap"
    """It begins beyond the count: something was lost."""


def fit(first_position: int, length: int, count: int) -> Fit:
    """Place ``length`` tokens from ``first_position`` against ``count`` tokens received before."""
    if first_position == count:
        return Fit.NEXT
    if first_position > count:
        return Fit.GAP
    return Fit.OLD if first_position + length <= count else Fit.OVERLAP
