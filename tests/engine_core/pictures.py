"""A vision model with the smallest of towers, for tiny multimodal checkpoints, and steps with pictures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from safetensors.torch import load_file, save_file
from transformers import PretrainedConfig, PreTrainedModel

from engine_core.attention.base import AttentionBackend
from engine_core.errors import InvalidRequestError
from engine_core.forward_context import Caches
from engine_core.layers.part_factory import PartFactory
from engine_core.media import Picture, PictureShape, Placeholder, View, VisionShape
from engine_core.model_loader.checkpoint import Checkpoint
from engine_core.models.language_model import LanguageModel
from engine_core.models.vision_model import Encoded, VisionModel
from engine_core.request import SamplingParams
from engine_core.step import EncoderPlan, NewSequence, StepPlan
from engine_core.vision import registry
from engine_core.worker.forward import HostForward
from engine_core.worker.input_batch import BatchLimits, InputBatch
from engine_core.worker.model_runner import ModelRunner
from tests.engine_core.models.multimodal_models import TYPES, configuration, make, save

PICTURE_TOKEN = 7
MOST_TOKENS = 24
_TOWER, _INPUTS = "visual.tiny", 16
SHAPES = {
    "Qwen3VLForConditionalGeneration": VisionShape(
        MOST_TOKENS, num_deepstack=2, mrope_section=(2, 3, 3), mrope_interleaved=True
    ),
    "Qwen2_5_VLForConditionalGeneration": VisionShape(MOST_TOKENS, mrope_section=(2, 3, 3)),
    "Gemma3ForConditionalGeneration": VisionShape(MOST_TOKENS, attends_both_ways=True),
    "Idefics3ForConditionalGeneration": VisionShape(MOST_TOKENS),
}
"""By class, what its pictures need of the engine."""


class TinyVision(VisionModel):
    """Embeddings are random numbers that follow from the digest, times a matrix."""

    numerics = ("tiny",)

    def __init__(
        self, config: PretrainedConfig, preprocessor: Mapping[str, Any], shape: VisionShape, parts: PartFactory
    ) -> None:
        self.shape = shape
        self._dtype, self._device = parts.dtype, parts.device
        self._linear = parts.linear(_TOWER, _INPUTS, config.get_text_config(decoder=True).hidden_size)

    @classmethod
    def read_shape(cls, config: PretrainedConfig, preprocessor: Mapping[str, Any]) -> VisionShape:
        return SHAPES[next(name for name, kind in TYPES.items() if kind == config.model_type)]

    @classmethod
    def renamed(cls, name: str) -> str | None:
        return name if name.startswith(f"{_TOWER}.") else None

    def encode(self, picture: Picture) -> Encoded:
        layers, count = self.shape.num_deepstack, picture.shape.num_tokens
        random = torch.Generator().manual_seed(int.from_bytes(picture.digest[:7], "big"))
        numbers = torch.randn((1 + layers) * count, _INPUTS, generator=random).to(self._device, self._dtype)
        whole = self._linear(numbers).view(1 + layers, count, -1)
        return Encoded(whole[0], whole[1:] if layers else None)

    def check(self, picture: Picture) -> None:
        if not 1 <= picture.shape.num_tokens <= self.shape.max_tokens:
            raise InvalidRequestError("media", f"expected 1 to {self.shape.max_tokens} tokens")

    def example(self, num_tokens: int) -> Picture:
        return picture(0, 1, min(num_tokens, self.shape.max_tokens))


@contextmanager
def seeing() -> Iterator[None]:
    """The classes of ``SHAPES`` see pictures as ``TinyVision`` does."""
    models = {name: type(f"Tiny{name}", (TinyVision,), {"model_type": TYPES[name]}) for name in SHAPES}
    with patch.dict(registry.VISION_MODELS, models):
        yield


def picture(number: int, rows: int, columns: int) -> Picture:
    """Of ``rows`` · ``columns`` tokens."""
    shape = PictureShape(rows * columns, token_rows=rows, token_columns=columns)
    return Picture.of(shape, [View(2, 1, bytes([number] * 6))])


Prompt = tuple[list[int], list[tuple[Picture, int]]]
"""Token ids, and pictures with their offsets."""


def prompt_of(*parts: int | list[int] | Picture, image_token: int = PICTURE_TOKEN) -> Prompt:
    """Of so many tokens of text, of these tokens, or of a picture's placeholders."""
    ids: list[int] = []
    found: list[tuple[Picture, int]] = []
    for part in parts:
        if isinstance(part, Picture):
            found.append((part, len(ids)))
            ids += [image_token] * part.shape.num_tokens
        elif isinstance(part, list):
            ids += part
        else:
            ids += [(31 * (len(ids) + place)) % 180 + 9 for place in range(part)]
    return ids, found


def placeholders(found: Sequence[tuple[Picture, int]]) -> tuple[Placeholder, ...]:
    return tuple(Placeholder(each.digest, offset, each.shape) for each, offset in found)


def make_multimodal(architecture: str, directory: Path, **fields: object) -> tuple[PreTrainedModel, Path]:
    """A checkpoint of a class of ``SHAPES``, and transformers' model; ``fields``: of its text model."""
    config = configuration(TYPES[architecture])
    text = config.get_text_config(decoder=True)
    for name, value in fields.items():
        setattr(text, name, value)
    model = make(config, architecture)
    save(model, directory, architecture)
    path, tower = directory / "model.safetensors", torch.randn(text.hidden_size, _INPUTS) / _INPUTS**0.5
    save_file({**load_file(path), f"{_TOWER}.weight": tower}, path)
    return model, directory


Work = tuple[int, int]
"""A sequence, and how many tokens of it are computed next."""


class PictureDriver:
    """Runs a model's steps on made-up plans: prompts with pictures, in chunks, beside each other."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        model: LanguageModel,
        attention: AttentionBackend,
        prompts: Sequence[Prompt],
        block_size: int = 16,
    ) -> None:
        self.prompts = prompts
        self.model = model
        groups = model.kv_cache_groups
        self.limits = BatchLimits(len(prompts), 512, 512, block_size, groups, vision=checkpoint.spec.vision)
        self._per_seq = -(-512 // block_size)
        caches = attention.allocate(
            model.kv_cache_spec(block_size), self._per_seq * len(prompts) * len(groups), torch.device("cpu")
        )
        for cache in caches:
            cache.fill_(torch.nan)
        self.caches = Caches(caches)
        batch = InputBatch(self.limits, model.vocab_size, [2])
        self.runner = ModelRunner(model, batch, HostForward(model, 64), None)
        self.done: dict[int, int] = {}
        self._step = 0

    def plan(self, work: Sequence[Work], preempted: Sequence[int] = ()) -> StepPlan:
        """Pictures are encoded when a sequence is introduced, and forgotten when the last one that has them leaves."""
        for seq in preempted:
            del self.done[seq]
        needed = {each.digest for seq in self.done for each, _ in self.prompts[seq][1]}
        forgotten = [each.digest for seq in preempted for each, _ in self.prompts[seq][1] if each.digest not in needed]
        new, encoded = [], []
        for seq, _ in work:
            if seq not in self.done:
                ids, found = self.prompts[seq]
                new.append(self._introduction(seq, ids, placeholders(found)))
                encoded += [(each.digest, each) for each, _ in found]
                self.done[seq] = 0
        self._step += 1
        return StepPlan(
            self._step,
            list(preempted),
            new,
            [seq for seq, _ in work],
            [count for _, count in work],
            [False] * len(work),
            {},
            encoder=EncoderPlan(forgotten, encoded),
        )

    def _introduction(self, seq: int, ids: list[int], media: tuple[Placeholder, ...]) -> NewSequence:
        groups, each = len(self.limits.kv_cache_groups), self._per_seq
        blocks = [list(range((seq * groups + g) * each, (seq * groups + g + 1) * each)) for g in range(groups)]
        return NewSequence(seq, 0, ids, len(ids), 0, blocks, SamplingParams(temperature=0.0), media)

    @torch.inference_mode()
    def step(self, work: Sequence[Work], preempted: Sequence[int] = (), rows: bool = False) -> list[torch.Tensor]:
        """Logits [n, V] of the tokens of each sequence; ``rows``: only of the last [1, V]."""
        inputs = self.runner._prepare(self.plan(work, preempted))
        last = inputs.query_starts[1:].astype("int64") - 1 if rows else None
        hidden = self.runner.forward(inputs, self.caches, None, last)
        counts = [1] * len(work) if rows else [count for _, count in work]
        logits = self.model.compute_logits(hidden).clone()
        self.runner.batch.advance(replace(inputs))
        for seq, count in work:
            self.done[seq] += count
        return list(torch.split(logits, counts))

    def whole(self, seq: int, chunks: Sequence[int] = ()) -> torch.Tensor:
        """Logits [T, V] of a prompt alone."""
        chunks = chunks or [len(self.prompts[seq][0])]
        return torch.cat([self.step([(seq, count)])[0] for count in chunks])
