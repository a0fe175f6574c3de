"""Typed parts of answers as protobuf messages, and the options for dividing answers into them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, groupby

from google.protobuf.internal.containers import RepeatedCompositeFieldContainer
from ringline.detokenizer.v1 import detokenizer_pb2
from ringline.types.v1 import part_pb2

from services.ring.events import TypedParts
from text_core.parsing.argument_types import TEXT, ArgumentType, JsonType
from text_core.parsing.parts import Content, ParseOptions, Part, Reasoning, ToolCallPiece

_Messages = RepeatedCompositeFieldContainer[part_pb2.Part]
# Upper estimates of wire sizes in bytes.
_PIECE_BYTES, _UTF8_BYTES, _POSITION_BYTES = 32, 4, 5


def typed_parts(pieces: Sequence[Part], reasoning_tokens: int) -> TypedParts:
    """Pieces of a choice's answer, as the ring carries them."""
    return TypedParts(pieces, sum(map(_wire_bytes, pieces)), reasoning_tokens)


def read_parts(messages: Iterable[part_pb2.Part], reasoning_tokens: int) -> TypedParts:
    """The pieces in ``messages``; those of unknown kinds are skipped."""
    return typed_parts([piece for message in messages if (piece := _piece(message)) is not None], reasoning_tokens)


def write_parts(messages: _Messages, parts: Iterable[TypedParts | None]) -> None:
    """Add the pieces of all ``parts``; adjacent ones that continue each other become one message."""
    for key, group in groupby(chain.from_iterable(one.pieces for one in parts if one is not None), _subject):
        pieces = list(group)
        message = messages.add()
        if key is Content:
            contents = [piece for piece in pieces if isinstance(piece, Content)]
            message.content = "".join(piece.text for piece in contents)
            message.content_tokens.extend(chain.from_iterable(piece.tokens for piece in contents))
        elif key is Reasoning:
            message.reasoning = "".join(piece.text for piece in pieces if isinstance(piece, Reasoning))
        else:
            calls = [piece for piece in pieces if isinstance(piece, ToolCallPiece)]
            message.tool_call.index = calls[0].index
            message.tool_call.id = "".join(call.id for call in calls)
            message.tool_call.name = "".join(call.name for call in calls)
            message.tool_call.arguments_json = "".join(call.arguments for call in calls)


def parse_options(context: detokenizer_pb2.OutputContext) -> ParseOptions:
    """How the answers of a request are divided; its ``parse`` must be set, every field resolved."""
    parse = context.parse
    return ParseOptions(
        tool_calls=parse.tool_calls,
        reasoning=parse.reasoning,
        begins_in_reasoning=parse.begins_in_reasoning,
        tool_names=tuple(parse.tool_names),
        argument_types=tuple(map(_argument_type, parse.argument_types)),
        call_id_seed=context.call_id_seed,
        content_tokens=parse.content_tokens,
    )


def types_message(argument: ArgumentType) -> part_pb2.ArgumentTypes:
    """The types of an argument as a message."""
    types = [part_pb2.JsonType.Value(f"JSON_TYPE_{each.name}") for each in sorted(argument.types)]
    return part_pb2.ArgumentTypes(name=argument.name, types=types, tools=argument.tools)


def _argument_type(message: part_pb2.ArgumentTypes) -> ArgumentType:
    known = frozenset(each for each in JsonType if int(each) in set(map(int, message.types)))
    return ArgumentType(message.name, known or TEXT, tuple(message.tools))


def _subject(piece: object) -> object:
    """A key that is equal for pieces that continue each other."""
    return piece.index if isinstance(piece, ToolCallPiece) else type(piece)


def _piece(message: part_pb2.Part) -> Part | None:
    match message.WhichOneof("kind"):
        case "content":
            return Content(message.content, tuple(message.content_tokens))
        case "reasoning":
            return Reasoning(message.reasoning)
        case "tool_call":
            call = message.tool_call
            return ToolCallPiece(call.index, call.id, call.name, call.arguments_json)
        case _:
            return None


def _wire_bytes(piece: Part) -> int:
    if isinstance(piece, ToolCallPiece):
        return _PIECE_BYTES + _UTF8_BYTES * (len(piece.id) + len(piece.name) + len(piece.arguments))
    positions = len(piece.tokens) if isinstance(piece, Content) else 0
    return _PIECE_BYTES + _UTF8_BYTES * len(piece.text) + _POSITION_BYTES * positions
