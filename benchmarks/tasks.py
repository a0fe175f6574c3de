"""What models are asked for where the text decides the speed: copies, edits, summaries, and texts that repeat nothing.

The material is Python's own: its reference (``pydoc_data``) and the functions of its standard library.
"""

from __future__ import annotations

import ast
import re
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice, product
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

from engine_core.llm import configure
from engine_core.offline.model_text import ModelText

_LEAST_WORDS, _MOST_WORDS = 60, 110
"""Of a passage, which is one paragraph."""
_LEAST_LINES, _MOST_LINES = 6, 16
"""Of a function."""
_MODULES = (
    "textwrap", "shutil", "heapq", "bisect", "calendar", "colorsys", "statistics", "fnmatch", "glob", "string",
    "random", "posixpath", "fractions", "difflib", "ast", "inspect", "tokenize", "copy", "csv", "queue",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Task:
    """A kind of question, and how it is to be answered."""

    name: str
    questions: Callable[[], list[str]]
    """All that there are, in one order."""
    tokens: int
    """The most tokens of an answer."""
    temperature: float = 0.0

    def prompts(self, tokenizer: Any, count: int, skipped: int = 0) -> list[list[int]]:
        """Token ids of ``count`` questions after the first ``skipped``, in the model's chat template; they come again
        where there are not as many.
        """
        asked = self.questions()
        return chats(tokenizer, [asked[(skipped + number) % len(asked)] for number in range(count)])


def tokenizer_of(model: Path) -> Any:
    """A model's tokenizer, without an engine."""
    return ModelText(configure(model=str(model)).model).tokenizer


def chats(tokenizer: Any, questions: Sequence[str]) -> list[list[int]]:
    """Token ids of conversations that begin with the questions."""
    asked = ([{"role": "user", "content": question}] for question in questions)
    return [list(tokenizer.apply_chat_template(chat, add_generation_prompt=True)) for chat in asked]


@cache
def passages() -> list[str]:
    """Paragraphs of Python's reference, of one to two hundred tokens."""
    found = []
    for name in sorted(topics):
        for paragraph in topics[name].split("\n\n"):
            text = " ".join(paragraph.split())
            plain = text[:1].isupper() and text.endswith(".") and "*" not in text and "::" not in text
            if plain and _LEAST_WORDS <= len(text.split()) <= _MOST_WORDS:
                found.append(text)
    return list(dict.fromkeys(found))


@cache
def functions() -> list[str]:
    """Short functions of the standard library, without their documentation."""
    return list(islice(_functions(), 200))


def _functions() -> Iterator[str]:
    for module in _MODULES:
        text = (Path(sysconfig.get_path("stdlib")) / f"{module}.py").read_text()
        for node in ast.parse(text).body:
            if isinstance(node, ast.FunctionDef) and node.args.args:
                if ast.get_docstring(node):
                    node.body = node.body[1:] or [ast.Pass()]
                code = ast.unparse(node)
                if _LEAST_LINES <= len(code.splitlines()) <= _MOST_LINES:
                    yield code


def _copies() -> list[str]:
    return [f"Repeat this text word for word:\n\n{text}" for text in passages()]


def _edits() -> list[str]:
    """Functions in which a parameter gets another name."""
    asked = []
    for code in functions():
        match = re.search(r"def \w+\((\w+)", code)
        assert match is not None
        asked.append(
            f"Rename the parameter `{match[1]}` to `value` in this Python function. Write only the whole new function."
            f"\n\n```python\n{code}\n```"
        )
    return asked


def _summaries() -> list[str]:
    return [f"Summarize this text in two sentences:\n\n{text}" for text in passages()]


def _stories() -> list[str]:
    """Stories about anything: the words are those that name the chapters of Python's reference."""
    return [f"Write a short story about {name.replace('-', ' ')} and a traveller." for name in sorted(topics)]


COPIES = Task("copies", _copies, tokens=160)
EDITS = Task("edits", _edits, tokens=160)
SUMMARIES = Task("summaries", _summaries, tokens=96)
STORIES = Task("stories", _stories, tokens=96, temperature=1.0)
TASKS = (COPIES, EDITS, SUMMARIES, STORIES)


_ANIMALS = ("fox", "bear", "rabbit", "owl", "dog", "cat", "mouse", "duck", "frog", "horse")
_NAMES = ("Bruno", "Mia", "Otto", "Lena")


def bundled_questions() -> list[str]:
    """What the bundled model knows to answer."""
    stories = [f"Tell me a story about a {animal} named {name}." for name, animal in product(_NAMES, _ANIMALS)]
    sums = [f"What is {first} plus {second}?" for first, second in product((3, 8, 11, 14), (2, 5, 9))]
    return [question for pair in zip(stories, [*sums, *sums, *sums, *sums], strict=False) for question in pair]
