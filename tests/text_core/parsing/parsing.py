"""Parses texts for tests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from text_core.choice_decoder import ChoiceDecoder, DecodeOptions
from text_core.parsing.argument_types import listed_types
from text_core.parsing.choice_parser import ChoiceParser
from text_core.parsing.content_tokens import ContentTokens
from text_core.parsing.formats import call_ids, make_parser
from text_core.parsing.parts import Content, ParseOptions, Part, PartWriter, Reasoning, ToolCallPiece
from text_core.parsing.reasoning_meter import ReasoningMeter
from text_core.tokenizer import Tokenizer

NAMES = ("f", "g", "get_weather")
TYPES = tuple(
    listed_types(
        {
            "f": {"properties": {"a": {"type": "string"}, "n": {"type": "integer"}, "b": {"type": "boolean"}}},
            "g": {
                "properties": {
                    "o": {"type": ["object", "null"]},
                    "m": {"anyOf": [{"type": "string"}, {"type": "null"}, {"type": "array"}]},
                    "n": {"type": "string"},
                }
            },
            "get_weather": {},
        },
        depth=3,
        by_tool=True,
    )
)


def options_of(tool_calls: str, *, reasoning: str | None = None, inside: bool = False) -> ParseOptions:
    """Options of a request with the tools ``NAMES``; reasoning is in gpt-oss's channels, or as most models write it."""
    default = "harmony" if tool_calls == "harmony" else "think"
    return ParseOptions(tool_calls, default if reasoning is None else reasoning, inside, NAMES, TYPES, b"seed")


def parse(pieces: Iterable[str], options: ParseOptions) -> list[list[Part]]:
    """What is known after each piece, and at the end."""
    tokens, text = ContentTokens(), ""
    writer = PartWriter(call_ids(options, 0), content_tokens=tokens)
    parser = make_parser(options, writer, ReasoningMeter())
    known: list[list[Part]] = [[]]

    def add() -> None:
        parts = [_with_checked_tokens(part, text) for part in writer.take()]
        known.append(merged([*known[-1], *parts]))

    for piece in pieces:
        for at in range(len(text), len(text) + len(piece)):
            tokens.begin_token(at)
        text += piece
        parser.feed(piece, len(text) - len(piece))
        add()
    parser.finish()
    add()
    return known[1:]


def tokens_parsed(
    tokenizer: Tokenizer, options: ParseOptions, ids: Sequence[int], cuts: Sequence[int]
) -> Iterator[Part]:
    """The pieces of an answer of tokens, which come in pieces that end at ``cuts``."""
    decode = DecodeOptions()
    decoder = ChoiceDecoder(tokenizer.pieces(), decode)
    parser = ChoiceParser(tokenizer, options, 0, decode, skip_special_tokens=True)
    for begin, end in zip([0, *cuts], cuts, strict=False):
        delta = decoder.feed(ids[begin:end])
        if delta is not None:
            yield from parser.feed(delta)
    yield from parser.feed(decoder.finish(), last=True)
    yield from parser.finish()


def _with_checked_tokens(part: Part, text: str) -> Part:
    """A part whose tokens, each a character of ``text``, spell it if it is content; without them."""
    if not isinstance(part, Content):
        return part
    assert "".join(text[token] for token in part.tokens) == part.text
    return Content(part.text)


def merged(parts: Iterable[Part]) -> list[Part]:
    """The parts, with pieces that continue each other joined."""
    whole: list[Part] = []
    for part in parts:
        before = whole[-1] if whole else None
        if isinstance(part, ToolCallPiece) and isinstance(before, ToolCallPiece) and not part.id:
            assert part.index == before.index
            whole[-1] = ToolCallPiece(before.index, before.id, before.name, before.arguments + part.arguments)
        elif isinstance(part, Content) and isinstance(before, Content):
            whole[-1] = Content(before.text + part.text, before.tokens + part.tokens)
        elif isinstance(part, Reasoning) and isinstance(before, Reasoning):
            whole[-1] = Reasoning(before.text + part.text)
        else:
            whole.append(part)
    return whole


def shown(parts: Sequence[Part]) -> list[str | tuple[str, str]]:
    """Parts as a test writes them: content, ``think: reasoning``, and name and arguments of a call."""
    texts: list[str | tuple[str, str]] = []
    for part in parts:
        if isinstance(part, ToolCallPiece):
            texts.append((part.name, part.arguments))
        else:
            texts.append(part.text if isinstance(part, Content) else f"think: {part.text}")
    return texts
