"""Flags of ``ringline generate`` for a search by beams."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

_Function = TypeVar("_Function", bound=Callable[..., Any])
_MEMBERS = {"beams": "width", "length_penalty": "length_penalty", "early_stopping": "early_stopping"}
"""Flags by their Python names, and the members of the option ``beam_search`` that they set."""
_EARLY_STOPPING = {"no": False, "yes": True, "never": "never"}
BEAM_FLAGS = {f"beam_search.{member}": f"--{flag.replace('_', '-')}" for flag, member in _MEMBERS.items()}
"""Fields of requests, and the flags that set them."""


def beam_options(function: _Function) -> _Function:
    """Add the flags."""
    options = (
        click.option(
            "--beams",
            type=int,
            metavar="N",
            help="Search for the most likely answers with so many beams, at least --n.",
        ),
        click.option(
            "--length-penalty", type=float, help="With --beams: above 0, longer answers score higher. Default: 1."
        ),
        click.option(
            "--early-stopping",
            type=click.Choice(list(_EARLY_STOPPING)),
            help="With --beams: end once so many answers have ended (yes), once the best beam is no better (no, the "
            "default), or once none can become better (never).",
        ),
    )
    for option in reversed(options):
        function = option(function)
    return function


def with_beam_search(flags: Mapping[str, Any]) -> dict[str, Any]:
    """``flags`` with the option that those of beams make. Raises ``UsageError``."""
    others = {name: value for name, value in flags.items() if name not in _MEMBERS}
    given = {member: flags[flag] for flag, member in _MEMBERS.items() if flags[flag] is not None}
    if not given:
        return others
    if "width" not in given:
        raise click.UsageError("--length-penalty and --early-stopping need --beams.")
    if "early_stopping" in given:
        given["early_stopping"] = _EARLY_STOPPING[given["early_stopping"]]
    return others | {"beam_search": given}
