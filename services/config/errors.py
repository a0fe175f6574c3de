"""How a process of Ringline ends: its exit codes, and the error that ends it with a sentence instead of a traceback."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """What the exit status says; 128 + n where signal n cut it off."""

    OK = 0
    FAILURE = 1
    """Something unexpected."""
    USAGE = 2
    """An option has a value that cannot be used."""
    STARTUP = 3
    """It cannot start for a reason outside of it: a checkpoint, memory, a port."""


def unusable_option(option: str, value: object, accepted: str) -> str:
    """That an option has a value that cannot be used, in the words of the command line."""
    return f"--{option.replace('_', '-')}={value} is not usable: expected {accepted}"


class FatalError(Exception):
    """The process must end; the text is one sentence fit to show a person."""

    def __init__(self, message: str, code: int = ExitCode.STARTUP) -> None:
        super().__init__(message)
        self.code = code
