"""Checkpoints as they are published are served, as text alone, or refused in one sentence, as the table says."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from engine_core.errors import EngineError
from engine_core.model_loader.checkpoint import Checkpoint
from engine_core.model_loader.loader import WeightsOnDisk, model_outline
from engine_core.model_loader.multimodal import text_name
from engine_core.models.registry import RINGLINE
from tests.engine_core.models.driver import open_at
from tests.engine_core.models.published import GROUPS, PUBLISHED
from tests.engine_core.models.published.entry import Fields, Outcome, Published
from tests.engine_core.models.published.layouts import LAYOUTS, expand

BY_NAME = {each.name: each for each in PUBLISHED}
SLOW = Outcome.FALLBACK
"""Transformers' modules are built to find out."""
SHARD_BYTES = 5 * 2**30


def opened(published: Published, directory: Path, load_format: str = "dummy") -> Checkpoint:
    """As a start does, in the type that nearly all are published in."""
    directory.mkdir(exist_ok=True)
    for name, content in {"config.json": published.config, **published.beside}.items():
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_text(json.dumps(content))
    return open_at(directory, load_format, dtype="bfloat16")


def outcome(published: Published, directory: Path) -> Outcome | str:
    """What a start does, or the sentence in which it refuses."""
    try:
        checkpoint = opened(published, directory)
    except EngineError as refusal:
        said = str(refusal)
        return published.outcome if published.refusal in said and "\n" not in said else said
    if checkpoint.text_of is not None:
        return Outcome.TEXT
    return Outcome.SERVES if checkpoint.choice.impl == RINGLINE else Outcome.FALLBACK


@pytest.mark.parametrize("group", GROUPS)
def test_outcomes(group: str, tmp_path: Path) -> None:
    expected = {each.name: each.outcome for each in GROUPS[group] if each.outcome is not SLOW}
    found = {name: outcome(BY_NAME[name], tmp_path / str(number)) for number, name in enumerate(expected)}
    assert found == expected


@pytest.mark.models
@pytest.mark.parametrize("group", GROUPS)
def test_numbers_of_weights(group: str, tmp_path: Path) -> None:
    served = [each for each in GROUPS[group] if each.weights is not None]
    for number, each in enumerate(served):
        checkpoint = opened(each, tmp_path / str(number))
        found = model_outline(checkpoint).num_weights / 1e9
        assert (each.name, found) == (each.name, pytest.approx(each.weights, rel=2e-3))
        assert (each.outcome is SLOW) == (checkpoint.choice.impl != RINGLINE and checkpoint.text_of is None)


@pytest.mark.models
@pytest.mark.parametrize("name", LAYOUTS)
def test_names_of_tensors(name: str, tmp_path: Path) -> None:
    """Files that have all the tensors and no bytes of them: a start checks names, shapes and types."""
    config = {key: value for key, value in BY_NAME[name].config.items() if key != "quantization_config"}
    published = Published(name, BY_NAME[name].outcome, None, config)
    model = model_outline(opened(published, tmp_path))
    shapes = model.tensors()
    names = [each for pattern in LAYOUTS[name] for each in expand(pattern, model.config.num_layers)]
    own = {each: model.renamed(text_name(each) if published.outcome is Outcome.TEXT else each) for each in names}
    vocabulary = (model.config.vocab_size, model.config.hidden_size)
    write_shards(
        tmp_path,
        {each: shapes.get(inner, vocabulary if "lm_head" in each else (1,)) for each, inner in own.items()},
    )
    WeightsOnDisk(opened(published, tmp_path, "auto"))


def write_shards(directory: Path, shapes: dict[str, tuple[int, ...]]) -> None:
    """Files of safetensors with an index, as checkpoints are published: no system maps one that exceeds its memory."""
    shards: list[dict[str, tuple[int, ...]]] = [{}]
    room = SHARD_BYTES
    for name, shape in shapes.items():
        room -= 2 * math.prod(shape)
        if room < 0 and shards[-1]:
            shards.append({})
            room = SHARD_BYTES - 2 * math.prod(shape)
        shards[-1][name] = shape
    weight_map = {}
    for number, shard in enumerate(shards, 1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        write_header(directory / file, shard)
        weight_map |= dict.fromkeys(shard, file)
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def write_header(file: Path, shapes: dict[str, tuple[int, ...]]) -> None:
    """A file of safetensors with zeros for which no room is taken."""
    header: Fields = {}
    end = 0
    for name, shape in shapes.items():
        start, end = end, end + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [start, end]}
    content = json.dumps(header).encode()
    with file.open("wb") as written:
        written.write(len(content).to_bytes(8, "little") + content)
        written.truncate(8 + len(content) + end)
