"""Exit codes, and the error that ends a process with one sentence instead of a traceback."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """The exit status of a process; 128 + n if signal n ended it."""

    OK = 0
    FAILURE = 1
    """An unexpected error."""
    USAGE = 2
    """An option has an unusable value."""
    STARTUP = 3
    """The process cannot start: a checkpoint, memory or a port is missing."""


def unusable_option(option: str, value: object, accepted: str) -> str:
    """The message for an unusable value, with the option as a flag."""
    return f"--{option.replace('_', '-')}={value} is not usable: expected {accepted}"


class FatalError(Exception):
    """The process must end; the text is one sentence for the user."""

    def __init__(self, message: str, code: int = ExitCode.STARTUP) -> None:
        super().__init__(message)
        self.code = code
