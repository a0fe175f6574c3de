"""Random checkpoints that pool, in sentence-transformers' layout, and what engines make of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import transformers
from transformers import PreTrainedModel, Qwen3Config

from engine_core.pooling.params import PoolingInput, PoolingParams, PoolingRequest, PoolingTask
from engine_core.startup import StartedEngine
from engine_core.step import SequenceOutput
from tests.engine_core.models.tiny_models import EAGER, SIZES

Values = npt.NDArray[np.float32]
EMBED = PoolingParams(PoolingTask.EMBED, normalize=True)
CONFIG = Qwen3Config(**SIZES, head_dim=32, tie_word_embeddings=True)
_MODULES = "sentence_transformers.models"


def random_model(directory: Path, kind: str = "Qwen3Model", config: Any = CONFIG, seed: int = 0) -> PreTrainedModel:
    """A float32 model of transformers' class ``kind``, saved. Biases and norms are random, too."""
    torch.manual_seed(seed)
    model: PreTrainedModel = getattr(transformers, kind)._from_config(config, **EAGER).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter += 0.2 * torch.randn_like(parameter)
    model.save_pretrained(directory)
    return model


def lay_out(
    directory: Path,
    pooling: Mapping[str, Any] | None = None,
    dense: Sequence[torch.nn.Linear] = (),
    *,
    normalize: bool = True,
    activation: str = "torch.nn.modules.activation.Tanh",
    **general: Any,
) -> None:
    """Add the files of sentence-transformers; ``general`` is for config_sentence_transformers.json."""
    kinds = ["Transformer", "Pooling", *["Dense"] * len(dense), *["Normalize"] * normalize]
    paths = ["", *(f"{place}_{kind}" for place, kind in enumerate(kinds[1:], 1))]
    modules = [
        {"idx": place, "name": str(place), "path": path, "type": f"{_MODULES}.{kind}"}
        for place, (kind, path) in enumerate(zip(kinds, paths, strict=True))
    ]
    (directory / "modules.json").write_text(json.dumps(modules))
    write(directory / "1_Pooling", {"word_embedding_dimension": 64, **(pooling or {"pooling_mode_lasttoken": True})})
    for path, linear in zip(paths[2:], dense, strict=False):
        sizes = {"in_features": linear.in_features, "out_features": linear.out_features}
        write(directory / path, {**sizes, "bias": linear.bias is not None, "activation_function": activation})
        torch.save({f"linear.{name}": each for name, each in linear.state_dict().items()}, directory / path / _WEIGHTS)
    if general:
        (directory / "config_sentence_transformers.json").write_text(json.dumps(general))


_WEIGHTS = "pytorch_model.bin"


def write(folder: Path, fields: Mapping[str, Any]) -> None:
    """Write config.json of a module."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(fields))


def texts(lengths: Sequence[int], vocab_size: int = 199) -> list[tuple[int, ...]]:
    """Random inputs of these lengths, in tokens."""
    draws = (np.random.default_rng(place).integers(3, vocab_size, length) for place, length in enumerate(lengths))
    return [tuple(draw.tolist()) for draw in draws]


def run(
    engine: StartedEngine, inputs: Sequence[tuple[int, ...]], params: PoolingParams = EMBED
) -> list[SequenceOutput]:
    """The last outputs of one request with ``inputs``, in their order."""
    given = {choice: PoolingInput(tokens) for choice, tokens in enumerate(inputs)}
    engine.core.add(PoolingRequest("request", given, params))
    outputs: dict[int, SequenceOutput] = {}
    while engine.core.has_work():
        for output in engine.core.step():
            assert output.choice not in outputs or outputs[output.choice].finish is None
            outputs[output.choice] = output
    return [outputs[choice] for choice in range(len(inputs))]


def pooled(engine: StartedEngine, inputs: Sequence[tuple[int, ...]], params: PoolingParams = EMBED) -> list[Values]:
    """The results [rows, numbers] of ``inputs``."""
    results = []
    for output in run(engine, inputs, params):
        assert output.pooled is not None, output.finish
        results.append(np.frombuffer(output.pooled.values, "<f4").reshape(output.pooled.rows, -1))
    return results


@torch.no_grad()
def hidden_states(model: PreTrainedModel, tokens: Sequence[int]) -> torch.Tensor:
    """[T, H] of transformers."""
    return model(torch.tensor([list(tokens)])).last_hidden_state[0]
