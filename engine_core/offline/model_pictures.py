"""Pictures of ``LLM``: decoded and resized in this process, as in the ring, and put into their places in a prompt."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from engine_core.errors import InvalidRequestError
from engine_core.media import MediaItem, Picture, PictureShape, View
from engine_core.offline.pictures import PictureFile
from engine_core.offline.prompts import Prompt
from text_core.pictures.base import PictureError, PictureProcessor
from text_core.pictures.decode import prepare
from text_core.pictures.expansion import expanded, with_pictures
from text_core.pictures.prepared import PreparedItem, PreparedPicture

NO_PICTURES = "the model takes no pictures; expected text alone"


@dataclass(frozen=True, slots=True)
class Pictures:
    """How a model's pictures are prepared."""

    processor: PictureProcessor
    limit: int
    """Most pictures of a prompt."""

    def check_texts(self, place: str, messages: Sequence[Mapping[str, Any]]) -> None:
        """Raise ``InvalidRequestError`` for a text with what stands for pictures: nobody may place one by hand."""
        for number, message in enumerate(messages):
            content = message["content"]
            texts = [content] if isinstance(content, str) else [part.get("text", "") for part in content]
            for mark in {self.processor.placeholder, self.processor.item_token}:
                if any(mark in text for text in texts):
                    problem = f"has {mark!r}, which stands for a picture; expected text without it"
                    raise InvalidRequestError(f"{place}[{number}].content", problem)

    def placed(self, prompt: Prompt, encode: Callable[[str], list[int]]) -> Prompt:
        """The prompt's ids and its pictures' places among them. Raises ``InvalidRequestError``."""
        if len(prompt.pictures) > self.limit:
            problem = f"has {len(prompt.pictures)} pictures; expected at most {self.limit} (limit_mm_per_prompt)"
            raise InvalidRequestError(prompt.place, problem)
        pictures = [self._prepared(picture) for picture in prompt.pictures]
        plans = [picture.plan for picture in pictures]
        try:
            text = with_pictures(prompt.text or "", self.processor.placeholder, plans)
            made = expanded(encode(text), self.processor.item_token_id, plans)
        except PictureError as error:
            raise InvalidRequestError(prompt.place, str(error)) from None
        items = [_engines(item) for picture in pictures for item in picture.items]
        media = tuple(map(MediaItem, items, made.offsets))
        return replace(prompt, text=text, token_ids=tuple(made.ids), pictures=(), media=media)

    def _prepared(self, picture: PictureFile) -> PreparedPicture:
        try:
            return prepare(self.processor, picture.data, picture.mime)
        except PictureError as error:
            raise InvalidRequestError(picture.place, str(error)) from None


def _engines(item: PreparedItem) -> Picture:
    """As the engine takes it."""
    plan = item.plan
    shape = PictureShape(plan.num_tokens, plan.rows, plan.columns, plan.token_rows, plan.token_columns)
    return Picture(shape, tuple(View(view.height, view.width, view.pixels) for view in item.views), item.digest)
