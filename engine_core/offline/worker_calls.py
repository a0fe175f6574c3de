"""Checks what ``LLM.collective_rpc`` is asked to call before any worker is."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from engine_core.worker.worker import Worker

METHODS = {
    name: inspect.signature(method)
    for name, method in inspect.getmembers(Worker, inspect.isfunction)
    if not name.startswith("_")
}
"""The signatures of a worker's public methods, by name."""


def worker_arguments(
    method: object, timeout: object, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Any, ...]:
    """The arguments of ``method`` in its order, with its defaults. Raises ``TypeError`` or ``ValueError``."""
    if not isinstance(method, str):
        kind = type(method).__name__
        raise TypeError(f"method is of type {kind}; expected the name of a method of a worker, such as 'profile'")
    if (signature := METHODS.get(method)) is None:
        raise ValueError(f"a worker has no public method {method!r}; expected one of {', '.join(METHODS)}")
    if timeout is not None and (isinstance(timeout, bool) or not isinstance(timeout, int | float)):
        raise TypeError(f"timeout is of type {type(timeout).__name__}; expected seconds or None")
    if timeout is not None and not timeout > 0:
        raise ValueError(f"timeout is {timeout}; expected seconds above 0, or None")
    try:
        bound = signature.bind(None, *args, **kwargs)
    except TypeError as error:
        raise TypeError(f"{method}: {error}; its arguments are {_written(signature)}") from None
    bound.apply_defaults()
    return bound.args[1:]


def _written(signature: inspect.Signature) -> str:
    """The parameters without ``self`` and types."""
    return ", ".join(list(signature.parameters)[1:]) or "none"
