"""The pictures of a chat: taken out of its message, read from where they are given, and checked.

A message waits without its pictures' bytes; these wait beside it, and are counted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

from ringline.content_parts import decode_base64
from ringline.inference.v1 import inference_pb2

from services.processor.served_models import ModelPictures, ServedModel
from services.ring.errors import invalid_field
from text_core.pictures.prepared import DIGEST_BYTES, PreparedItem, PreparedPicture

MAX_SOURCES = 1024
"""Pictures of a message; models take fewer."""
_TYPE = r"(?:image|[A-Za-z0-9.+-]{1,64}/[A-Za-z0-9.+*-]{1,64})"
"""Some write no more than ``image``."""
_PARAMETERS = r"(?:\s*;[^;,]{1,80}){0,3}"
_DATA_URL = re.compile(rf"data:(?P<mime>{_TYPE}{_PARAMETERS}?)?;base64,", re.IGNORECASE)
_MIME = re.compile(rf"{_TYPE}{_PARAMETERS}", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class PictureSource:
    """A picture as a client sent it."""

    path: str
    """Where it stands in the request, for errors."""
    given: bytes | str | None = field(repr=False)
    """The file, or a data: URL; None: neither is set."""
    mime_type: str = ""

    @property
    def nbytes(self) -> int:
        """In memory; a character that is no data: URL's may take four."""
        if self.given is None:
            return 0
        return len(self.given) * (1 if isinstance(self.given, bytes) or self.given.isascii() else 4)

    def read(self) -> tuple[bytes, str]:
        """The file and its type. Raises ``Refused``."""
        if self.mime_type and not _MIME.fullmatch(self.mime_type):
            raise invalid_field(f"{self.path}.mime_type", f"{self.mime_type[:80]!r}: expected a type such as image/png")
        data, mime = self._from_url(self.given) if isinstance(self.given, str) else (self.given, self.mime_type)
        if not data:
            raise invalid_field(self.path, "empty: expected the bytes of a picture")
        return data, mime

    def _from_url(self, url: str) -> tuple[bytes, str]:
        if (head := _DATA_URL.match(url, 0, 256)) is None:
            problem = f"{url[:40]!r}… is no data: URL: expected data:image/png;base64, and then base64"
            raise invalid_field(f"{self.path}.data_url", problem)
        mime = head["mime"] or ""
        if self.mime_type and mime and mime.lower() != self.mime_type.lower():
            problem = f"{self.mime_type!r}, but the data: URL says {mime!r}: expected one type"
            raise invalid_field(f"{self.path}.mime_type", problem)
        try:
            return decode_base64(url, head.end()), self.mime_type or mime
        except ValueError:
            raise invalid_field(
                f"{self.path}.data_url", "not base64: expected its 64 characters and = at the end"
            ) from None


@dataclass(frozen=True, slots=True)
class ChatPictures:
    """A chat's pictures, prepared for one model."""

    facts: bytes
    """Say how they were prepared."""
    pictures: Sequence[PreparedPicture]

    @property
    def items(self) -> list[PreparedItem]:
        return [item for picture in self.pictures for item in picture.items]

    @property
    def digests(self) -> list[bytes]:
        """One for each picture, of its pixels as the model sees them."""
        return [_digest([item.digest for item in picture.items]) for picture in self.pictures]


def _digest(items: Sequence[bytes]) -> bytes:
    return items[0] if len(items) == 1 else blake2b(b"".join(items), digest_size=DIGEST_BYTES).digest()


class OtherModelError(Exception):
    """The request's model is no longer that for which its pictures were prepared."""


def take_sources(chat: inference_pb2.Chat) -> list[PictureSource]:
    """Take the pictures' bytes out of ``chat``, whose parts stay. It copies them: many take a while."""
    sources = []
    for path, part in media_parts(chat):
        kind = part.media.WhichOneof("source")
        given = None if kind is None else getattr(part.media, kind)
        sources.append(PictureSource(path, given, part.media.mime_type))
        part.media.Clear()
        part.media.SetInParent()
    return sources


def check_sources(sources: Sequence[PictureSource]) -> None:
    """Raise ``Refused`` for too many, and for one that is missing."""
    for source in sources[:MAX_SOURCES]:
        if source.given is None:
            raise invalid_field(source.path, "none is set: expected data or data_url")
    if len(sources) > MAX_SOURCES:
        raise invalid_field(sources[MAX_SOURCES].path, f"more than {MAX_SOURCES} pictures: expected fewer")


def media_parts(chat: inference_pb2.Chat) -> Iterator[tuple[str, inference_pb2.ContentPart]]:
    """The parts that are pictures, with their field."""
    for at, message in enumerate(chat.messages):
        for number, part in enumerate(message.content_parts):
            if part.HasField("media"):
                yield f"chat.messages[{at}].content_parts[{number}].media", part


def pictures_of(served_model: ServedModel, sources: Sequence[PictureSource]) -> ModelPictures:
    """How the model's pictures are prepared. Raises ``Refused`` if it takes none, or not so many."""
    pictures = served_model.pictures
    if pictures is None:
        problem = f"the model {served_model.limits.name!r} takes no pictures: expected text alone"
        raise invalid_field(sources[0].path, problem)
    if len(sources) > pictures.limit:
        problem = f"{len(sources)} pictures: expected at most {pictures.limit} (--limit-mm-per-prompt of the engine)"
        raise invalid_field(sources[pictures.limit].path, problem)
    return pictures


def check_pictures(
    chat: inference_pb2.Chat, sources: Sequence[PictureSource], served_model: ServedModel
) -> ModelPictures:
    """How the model's pictures are prepared. Raises ``Refused`` for a chat that cannot be used with it."""
    pictures = pictures_of(served_model, sources)
    check_texts(chat, pictures)
    return pictures


def check_texts(chat: inference_pb2.Chat, pictures: ModelPictures) -> None:
    """Raise ``Refused`` for a text with what stands for pictures: nobody may place one by hand."""
    _check_marks(_texts(chat), pictures)


def check_other_texts(chat: inference_pb2.Chat, pictures: ModelPictures) -> None:
    """Raise ``Refused`` for such a text among those that few templates show: one was shown too often."""
    _check_marks(_other_texts(chat), pictures)


def _check_marks(texts: Iterator[tuple[str, str]], pictures: ModelPictures) -> None:
    marks = {pictures.processor.placeholder, pictures.processor.item_token}
    for field_name, text in texts:
        for mark in marks:
            if mark in text:
                problem = f"has {mark!r}, which stands for a picture: expected text without it"
                raise invalid_field(field_name, problem)


def _texts(chat: inference_pb2.Chat) -> Iterator[tuple[str, str]]:
    for at, message in enumerate(chat.messages):
        path = f"chat.messages[{at}]"
        yield f"{path}.content", message.content
        yield f"{path}.reasoning", message.reasoning
        for number, part in enumerate(message.content_parts):
            yield f"{path}.content_parts[{number}].text", part.text
        for number, call in enumerate(message.tool_calls):
            yield f"{path}.tool_calls[{number}].arguments_json", call.arguments_json


def _other_texts(chat: inference_pb2.Chat) -> Iterator[tuple[str, str]]:
    yield "chat.tools_json", chat.tools_json
    for number, tool in enumerate(chat.tools):
        yield f"chat.tools[{number}].description", tool.description
        yield f"chat.tools[{number}].parameters_json", tool.parameters_json
    yield "chat.template_args_json", chat.template_args_json
    for at, message in enumerate(chat.messages):
        path = f"chat.messages[{at}]"
        yield f"{path}.role", message.role
        yield f"{path}.name", message.name
        yield f"{path}.tool_call_id", message.tool_call_id
        for number, call in enumerate(message.tool_calls):
            yield f"{path}.tool_calls[{number}].id", call.id
            yield f"{path}.tool_calls[{number}].name", call.name


def check_resumed(request: inference_pb2.GenerateRequest, digests: Sequence[bytes]) -> None:
    """Raise ``Refused`` if a resumed request has other pictures than it began with; ``digests`` are those it has."""
    if not request.HasField("resume"):
        return
    given = list(request.resume.media_digests)
    delivered = any(choice.token_ids for choice in request.resume.choices)
    if not given and not delivered:
        return
    if given != list(digests):
        problem = (
            f"{len(given)} digests, which are not those of the {len(digests)} pictures sent: expected the pictures "
            "that the request began with, and the digests that Admitted returned"
        )
        raise invalid_field("resume.media_digests", problem)
