"""Every error the engine raises on purpose.

EngineError
├── ConfigError            an option has a value that cannot be used (names option, value, what is accepted)
│   └── UnknownOptionError     there is no such option
├── CheckpointError        a checkpoint is missing, damaged, or asks for what the engine does not have
│   └── UnsupportedModelError
├── OutOfMemoryError       the model or its KV cache does not fit the budget (names the numbers and the flag)
├── RequestError           one request is refused; no other is affected
│   ├── InvalidRequestError    a field has a value that it does not take (names the field and what it accepts)
│   └── QueueFullError         the waiting queue is at its limit; try again later
├── ExecutorError          a step failed; the engine cannot go on
├── StandstillError        requests wait, and no step can be planned for them; the engine cannot go on
└── ClosedError            the LLM is closed

RankFailedError is none of them: it ends a rank's computing, and never reaches a user.
"""

from __future__ import annotations

from collections.abc import Callable

_LONGEST = 1500
"""Characters of an error's text; a path may have most of them."""


def written(value: object, write: Callable[[object], str] = repr) -> str:
    """``value`` as ``write`` writes it, or words where Python refuses to write its thousands of digits."""
    try:
        return write(value)
    except ValueError:
        return "a number of thousands of digits"


def _one_line(text: str) -> str:
    """``text`` as a terminal or a log can take it: what is damaged or hostile is quoted in many errors."""
    text = _shortened(text)
    if not text.isprintable():
        text = "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
    return _shortened(text)


def _shortened(text: str) -> str:
    """Without its middle where it is too long: what is wrong stands at the beginning, what to do at the end."""
    half = _LONGEST // 2
    return text if len(text) <= _LONGEST else f"{text[:half]} … {text[-half:]}"


class EngineError(Exception):
    """Base of all errors here. The text is one sentence for the user, in one line."""

    def __init__(self, text: str = "") -> None:
        """What does not print is escaped in ``text``, and a long one loses its middle."""
        super().__init__(_one_line(text))

    def __reduce__(self) -> tuple[object, ...]:
        """Pickled as it is: constructors take other arguments than the text."""
        return _restored, (type(self), self.args), self.__dict__


def _restored(kind: type[EngineError], args: tuple[object, ...]) -> EngineError:
    error = kind.__new__(kind, *args)
    error.args = args
    return error


class ConfigError(EngineError):
    """An option has a value that cannot be used."""

    def __init__(self, option: str, value: object, accepted: str) -> None:
        """``option`` is the field's name, ``accepted`` says what it takes."""
        super().__init__(f"{option}={written(value)} is not usable: expected {accepted}")
        self.option = option
        self.value = value
        self.accepted = accepted


class UnknownOptionError(ConfigError):
    """There is no such option."""

    def __init__(self, option: str, value: object, message: str) -> None:
        """``message`` names the option, and what there is instead."""
        EngineError.__init__(self, message)
        self.option = option
        self.value = value
        self.accepted = "no value"


class CheckpointError(EngineError):
    """A checkpoint is missing, damaged, or disagrees with its own configuration."""


class UnsupportedModelError(CheckpointError):
    """The checkpoint needs a feature (architecture, rope type, …) that the engine lacks."""


class OutOfMemoryError(EngineError):
    """The model or its KV cache does not fit into the memory budget."""


class RequestError(EngineError):
    """A request is refused."""


class InvalidRequestError(RequestError, ValueError):
    """A field of a request has the wrong type or is out of range."""

    def __init__(self, field: str, problem: str) -> None:
        """``field`` is the request's field, ``problem`` says what is wrong and what is accepted."""
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


class QueueFullError(RequestError):
    """The waiting queue is at its limit."""


class ExecutorError(EngineError):
    """A step failed; the engine's state can no longer be trusted."""


class RankFailedError(Exception):
    """Another rank has failed or is gone: nothing that this one computes is of use."""


class StandstillError(EngineError):
    """Requests wait, but the scheduler plans nothing, and no step is in flight that could change that."""


class ClosedError(EngineError, RuntimeError):
    """The LLM that is called is closed, or was made before this process was forked."""

    def __init__(self) -> None:
        super().__init__("the LLM is closed; make a new one")
