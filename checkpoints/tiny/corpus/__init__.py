"""The text that the bundled model learns from, made from a seed: document i is a function of (seed, i) alone.

Reading order: `world` (names and things), `names`, `plots` and `stories`, `arithmetic`, `facts`, `explanations`,
`introductions`, `ringline`, then `conversation` and `tools`, which put them into chats.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from corpus import arithmetic, conversation, facts, introductions, ringline, stories, tools


@dataclass(frozen=True)
class Document:
    """Either plain text, or the messages of a chat with the tools that were offered."""

    text: str | None = None
    messages: list[conversation.Message] = field(default_factory=list)
    tools: list[dict[str, Any]] = field(default_factory=list)


def document(seed: int, index: int) -> Document:
    """The document at this index."""
    rng = Random(f"{seed}:{index}")
    make = rng.choices([m for _, m in _MAKERS], weights=[w for w, _ in _MAKERS])[0]
    return make(rng)


def long_document(seed: int, index: int) -> Document:
    """The long chat at this index."""
    return Document(messages=conversation.long_chat(Random(f"{seed}:long:{index}")))


def _story_text(rng: Random) -> Document:
    tale = stories.story(rng)
    return Document(text=f"{tale.title}\n\n{tale.text}" if rng.random() < 0.25 else tale.text)


def _tool_chat(rng: Random) -> Document:
    messages, offered = tools.tool_chat(rng)
    return Document(messages=messages, tools=offered)


# The share of documents of each sort. Stories are long, so they are about two fifths of all tokens.
_MAKERS: tuple[tuple[float, Callable[[Random], Document]], ...] = (
    (0.08, _story_text),
    (0.12, lambda rng: Document(messages=conversation.storytelling(rng))),
    (0.34, lambda rng: Document(messages=conversation.conversation(rng))),
    (0.25, lambda rng: Document(messages=conversation.drill(rng))),
    (0.07, lambda rng: Document(messages=conversation.introducing(rng))),
    (0.02, lambda rng: Document(text=introductions.listing(rng))),
    (0.04, lambda rng: Document(text=arithmetic.worksheet(rng))),
    (0.04, lambda rng: Document(text=conversation.quiz(rng))),
    (0.02, lambda rng: Document(text=facts.reader(rng))),
    (0.01, lambda rng: Document(text=ringline.paragraph(rng))),
    (0.02, _tool_chat),
)
