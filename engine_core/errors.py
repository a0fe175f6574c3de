"""Every error the engine raises on purpose.

EngineError
├── ConfigError            an option has an unusable value (names option, value, accepted values)
│   └── UnknownOptionError     there is no such option
├── CheckpointError        a checkpoint is missing, damaged, or needs a feature that the engine lacks
│   └── UnsupportedModelError
├── AdapterError           an adapter is missing, damaged, or not one of this model
├── OutOfMemoryError       the model or its KV cache does not fit the budget (names the numbers and the flag)
├── RequestError           one request is refused; no other is affected
│   ├── InvalidRequestError    a field has an unacceptable value (names the field and accepted values)
│   └── QueueFullError         the waiting queue is at its limit; try again later
├── ExecutorError          a step failed; the engine cannot go on
├── StandstillError        requests wait, and no step can be planned for them; the engine cannot go on
└── ClosedError            the LLM is closed

RankFailedError is not an EngineError: it ends a rank's computation, and never reaches a user.
"""

from __future__ import annotations

from collections.abc import Callable

_LONGEST = 1500
"""Most characters of an error's text; a path may take most of them."""


def written(value: object, write: Callable[[object], str] = repr) -> str:
    """``write(value)``, or words if Python refuses to convert an integer of thousands of digits."""
    try:
        return write(value)
    except ValueError:
        return "a number of thousands of digits"


def _one_line(text: str) -> str:
    """``text`` made safe for a terminal or log: many errors quote damaged or hostile input."""
    text = _shortened(text)
    if not text.isprintable():
        text = "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
    return _shortened(text)


def _shortened(text: str) -> str:
    """``text`` without its middle if too long: the problem is at the beginning, the advice at the end."""
    half = _LONGEST // 2
    return text if len(text) <= _LONGEST else f"{text[:half]} … {text[-half:]}"


class EngineError(Exception):
    """Base of all errors here. The text is one sentence for the user, in one line."""

    def __init__(self, text: str = "") -> None:
        """Escapes unprintable characters in ``text``, and cuts the middle of a long one."""
        super().__init__(_one_line(text))

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle without calling the constructor, whose arguments differ from ``args``."""
        return _restored, (type(self), self.args), self.__dict__


def _restored(kind: type[EngineError], args: tuple[object, ...]) -> EngineError:
    error = kind.__new__(kind, *args)
    error.args = args
    return error


class ConfigError(EngineError):
    """An option has an unusable value."""

    def __init__(self, option: str, value: object, accepted: str) -> None:
        """``option``: the field's name. ``accepted``: a description of the accepted values."""
        super().__init__(f"{option}={written(value)} is not usable: expected {accepted}")
        self.option = option
        self.value = value
        self.accepted = accepted


class UnknownOptionError(ConfigError):
    """There is no such option."""

    def __init__(self, option: str, value: object, message: str) -> None:
        """``message`` names the option, and the alternative."""
        EngineError.__init__(self, message)
        self.option = option
        self.value = value
        self.accepted = "no value"


class CheckpointError(EngineError):
    """A checkpoint is missing, damaged, or disagrees with its own configuration."""


class UnsupportedModelError(CheckpointError):
    """The checkpoint needs a feature (architecture, rope type, …) that the engine lacks."""


class AdapterError(EngineError):
    """An adapter is missing, damaged, needs a feature that the engine lacks, or is not one of this model."""


class OutOfMemoryError(EngineError):
    """The model or its KV cache does not fit into the memory budget."""


class RequestError(EngineError):
    """A request is refused."""


class InvalidRequestError(RequestError, ValueError):
    """A field of a request has the wrong type or is out of range."""

    def __init__(self, field: str, problem: str) -> None:
        """``field``: of the request. ``problem``: what is wrong, and what is accepted."""
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


class QueueFullError(RequestError):
    """The waiting queue is at its limit."""


class ExecutorError(EngineError):
    """A step failed; the engine's state can no longer be trusted."""


class RankFailedError(Exception):
    """Another rank has failed or is gone, so this rank's results are useless."""


class StandstillError(EngineError):
    """Requests wait, but the scheduler plans nothing, and no step is in flight that could change that."""


class ClosedError(EngineError, RuntimeError):
    """The called LLM is closed, or was created before this process was forked."""

    def __init__(self) -> None:
        super().__init__("the LLM is closed; make a new one")
