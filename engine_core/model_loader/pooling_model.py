"""Whether a checkpoint's model pools in place of generating, of which class it then is, and how it pools."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from engine_core.config import ModelConfig
from engine_core.errors import CheckpointError, ConfigError, UnsupportedModelError
from engine_core.model_loader.builtin_templates import has_pair_template
from engine_core.model_loader.gguf.files import is_gguf
from engine_core.model_loader.json_files import read_object
from engine_core.model_loader.safetensors_reader import find_tensors, has_tensors
from engine_core.model_loader.stored_tensor import StoredTensor
from engine_core.model_loader.vocabulary import read_vocabulary
from engine_core.models.kinds import not_supported
from engine_core.models.language_model import LanguageModel
from engine_core.models.model_config import ArchitectureConfig, ModelShape
from engine_core.models.registry import decoder_of, is_encoder
from engine_core.pooling.config import Layout, PoolerConfig, Sources, TokenHead, read_layout, resolved
from engine_core.pooling.facts import PairForm
from engine_core.pooling.options import OPTION, PoolerOptions, read_pooler_options
from engine_core.pooling.params import PoolingTask

_MOST_BYTES = 1 << 20
"""Of modules.json, which has some hundreds."""
_EMBEDS = PoolingTask.EMBED, PoolingTask.TOKEN_EMBED
_TASKS = {
    "ForSequenceClassification": (PoolingTask.CLASSIFY,),
    "ForTokenClassification": (PoolingTask.TOKEN_CLASSIFY,),
    "ForRewardModel": (PoolingTask.CLASSIFY, PoolingTask.TOKEN_CLASSIFY),
    "ForProcessRewardModel": (PoolingTask.TOKEN_CLASSIFY,),
    "Model": _EMBEDS,
}
"""What classes compute that do not generate, by the end of their names."""
_REWARDS = {"num_labels": 1, "problem_type": "regression"}
"""Of config.json, where it does not say otherwise: one number, of any size, as Qwen2.5-Math-RM's code has it."""


@dataclass(frozen=True, slots=True)
class PoolingChoice:
    """A checkpoint whose model pools."""

    architecture: str
    """The class in config.json."""
    runs_as: str
    """The class whose layers compute it: an encoder, or a decoder."""
    layout: Layout
    options: PoolerOptions
    tasks: tuple[PoolingTask, ...]
    """Those that its class is made for."""


def choose_pooling(path: Path, raw: Mapping[str, Any], architecture: str, config: ModelConfig) -> PoolingChoice | None:
    """How the checkpoint at ``path`` pools; None: it generates. Raises ``CheckpointError``, ``ConfigError``."""
    options, encodes = read_pooler_options(config.pooler_config), is_encoder(architecture, raw)
    if config.runner == "generate":
        if encodes:
            raise not_supported(architecture, "it is an encoder, which generates no text (--runner generate)")
        if options is not None:
            raise ConfigError(OPTION, config.pooler_config, "no value with --runner generate")
        return None
    layout = Layout() if is_gguf(path) else layout_of(path)
    tasks = next((tasks for end, tasks in _TASKS.items() if architecture.endswith(end)), None)
    is_made_for_it = layout.is_there or tasks is not None or encodes
    if config.runner == "auto" and not is_made_for_it and options is None:
        return None
    if is_gguf(path):
        raise UnsupportedModelError(
            f"{path} is a GGUF file, of which only models that generate are read: give the checkpoint in transformers' "
            "format to pool its hidden states"
        )
    runs_as = architecture if encodes else decoder_of(architecture, raw.get("model_type"))
    return PoolingChoice(architecture, runs_as, layout, options or PoolerOptions(), tasks or _EMBEDS)


def layout_of(path: Path) -> Layout:
    """What the files of sentence-transformers in the directory ``path`` say. Raises ``CheckpointError``."""
    return read_layout(path, read_object, _read_list)


def pooler_config(
    choice: PoolingChoice, path: Path, raw: Mapping[str, Any], model: type[LanguageModel], shape: ModelShape
) -> PoolerConfig:
    """How the ``model`` with ``shape`` pools. Raises ``CheckpointError``, ``UnsupportedModelError``."""
    tokens = choice.options.classifier_from_token or choice.layout.tokens
    token_ids = _token_ids(path, tokens, shape.vocab_size)
    is_template = bool(tokens) or has_pair_template(path)
    return resolved(
        Sources(
            layout=choice.layout,
            options=choice.options,
            fields={**_REWARDS, **raw} if choice.architecture.endswith("ForRewardModel") else raw,
            tasks=choice.tasks,
            hidden_size=shape.hidden_size,
            default_pooling=model.pooling_of(raw, choice.architecture),
            attends_both_ways=shape.attends_both_ways,
            head=_head(model, shape),
            token_ids=token_ids,
            pair_form=PairForm.TEMPLATE if is_template and not shape.attends_both_ways else PairForm.SEGMENTS,
        )
    )


def _head(model: type[LanguageModel], shape: ModelShape) -> TokenHead:
    head = TokenHead(model.head_tensor(shape), (), is_difference=False)
    if isinstance(shape, ArchitectureConfig):
        return replace(head, scale=shape.logit_scale, softcap=shape.logit_softcap)
    return head


def tensors_beside(path: Path, config: PoolerConfig) -> dict[str, StoredTensor]:
    """The tensors of dense layers, which have folders of their own, by their names in the model."""
    found = dict[str, StoredTensor]()
    for layer in config.dense:
        folder = path / layer.folder
        if not has_tensors(folder):
            raise CheckpointError(f"{folder} has no weights (model.safetensors or pytorch_model.bin)")
        for name, tensor in find_tensors(folder).items():
            found[f"{layer.folder}.{name}"] = replace(tensor, name=f"{layer.folder}.{name}")
    return found


def _token_ids(path: Path, tokens: Sequence[str | int], vocab_size: int) -> tuple[int, ...]:
    """The ids of ``tokens``, which are ids already or are in the vocabulary of ``path``. Raises ``CheckpointError``."""
    if not tokens:
        return ()
    vocabulary = read_vocabulary(path) if any(isinstance(token, str) for token in tokens) else None
    by_text = {} if vocabulary is None else {text: token_id for token_id, text in vocabulary.tokens.items()}
    ids = tuple(token if isinstance(token, int) else by_text.get(token, -1) for token in tokens)
    for token, token_id in zip(tokens, ids, strict=True):
        if not 0 <= token_id < vocab_size:
            accepted = f"tokens of its vocabulary (tokenizer.json), or ids below {vocab_size}"
            raise CheckpointError(f"{path}: {token!r} of classifier_from_token is not usable: expected {accepted}")
    return ids


def _read_list(path: Path, optional: bool = False) -> list[Any]:
    """The JSON list in a file; empty if optional and missing. Raises ``CheckpointError``."""
    try:
        if optional and not path.exists():
            return []
        if not path.is_file() or path.stat().st_size > _MOST_BYTES:
            raise CheckpointError(f"{path} is no file of at most {_MOST_BYTES} bytes: download the checkpoint again")
        content = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(content, list):
        raise CheckpointError(f"{path} does not hold a JSON list")
    return content
