"""One exchange of a conversation: a question, its answer, and the answer in a word where there is one."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Exchange:
    """A question and its answer; `short` is None where no single word answers.

    `names` is true where the question brings names that the answer says again: they keep their capital letters.
    """

    question: str
    answer: str
    short: str | None
    names: bool = False
