"""Find a checkpoint, read its configuration, and resolve it against the options.

``loader`` reads the weights. Nothing from a checkpoint is executed.
"""

from __future__ import annotations

import copy
import json
import re
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import CONFIG_MAPPING, AutoConfig, PretrainedConfig

from engine_core.config import LoadConfig, ModelConfig, ModelSpec, ParallelConfig
from engine_core.errors import CheckpointError, ConfigError, UnsupportedModelError
from engine_core.media import VisionShape
from engine_core.model_loader import deepseek_ocr, multimodal
from engine_core.model_loader.digest import WeightsDigest, digest_of
from engine_core.model_loader.generation_config import default_sampling
from engine_core.model_loader.gguf.config import describe
from engine_core.model_loader.gguf.files import is_gguf
from engine_core.model_loader.gguf.reader import read_gguf
from engine_core.model_loader.gguf.tokenizer import eos_token_ids
from engine_core.model_loader.json_files import read_object
from engine_core.model_loader.location import find_checkpoint, served_name, tokenizer_source
from engine_core.model_loader.picture_options import picture_limit, preprocessor_overrides, resolved
from engine_core.model_loader.pooling_model import PoolingChoice, choose_pooling, pooler_config, tensors_beside
from engine_core.model_loader.safetensors_reader import find_tensors, has_tensors
from engine_core.model_loader.stored_quantization import require_stored_codes, stored_quantization, with_quantization
from engine_core.model_loader.stored_tensor import StoredTensor
from engine_core.model_loader.text_model import TextModel
from engine_core.models.model_config import MOST_LAYERS, ArchitectureConfig, ModelShape, require_like_layers
from engine_core.models.registry import (
    ARCHITECTURES,
    ENCODERS,
    RINGLINE,
    ModelChoice,
    canonical_architecture,
    choose_model,
    fallback_may_run,
)
from engine_core.models.vision_model import VisionModel
from engine_core.pooling.config import PoolerConfig
from engine_core.quantization.base import QuantizationConfig
from engine_core.quantization.int4 import DEFAULT_GROUP_SIZE

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_COUNTS = re.compile(r"(?<!per_)layers?$|blocks$|^num_labels$|^first_k_dense_replace$|^attention_types$")
"""Names of the config.json fields whose value is the length of a list that transformers builds."""
_LAYER_TYPES = "layer_types", "layers_block_type"
"""Names of the fields with the type of each layer."""
_PUBLISHED_TYPES = {"kimi_k2": "deepseek_v3"}
"""``model_type`` of checkpoints whose publisher has a name of its own for another model, to that model's."""


@dataclass(frozen=True, slots=True)
class VisionChoice:
    """What encodes a checkpoint's pictures."""

    model: type[VisionModel]
    config: PretrainedConfig
    """Of the whole checkpoint."""
    preprocessor: Mapping[str, Any]
    """How pictures are prepared: preprocessor_config.json, or ``image_processor`` in processor_config.json; and what
    the options say instead."""
    shape: VisionShape
    """Resolved against the options."""
    is_quantized: bool
    """Whether any of its stored tensors is, which the files tell better than the configuration's patterns of names."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint whose configuration is read and resolved; its weights are still on disk."""

    path: Path
    """Directory of config.json (for a hub id, of the downloaded snapshot), or the (first) GGUF file."""
    fields: Mapping[str, Any]
    """config.json, or its equivalent from a GGUF file."""
    text_of: str | None
    """The class of a multimodal checkpoint, around its text model."""
    vision: VisionChoice | None
    """What encodes pictures; None: none are accepted."""
    spec: ModelSpec
    """Resolved against the options."""
    choice: ModelChoice
    config: ModelShape
    dtype: torch.dtype
    """The type of weights, activations and KV cache."""
    quantization: str | None
    """Format to which linear layers are quantized at load, as in ``ModelConfig``."""
    group_size: int | None
    """Inputs per group of int4."""
    stored_quantization: QuantizationConfig | None
    """The quantization of the stored weights; None: they are not quantized."""
    int8_activations: bool
    """As in ``ModelConfig``."""
    load_format: str
    """As in ``LoadConfig``."""
    seed: int
    """For dummy weights."""
    pooler: PoolerConfig | None = None
    """How hidden states are pooled; None: the model generates."""
    beside: Mapping[str, StoredTensor] = field(default_factory=dict)
    """Tensors of the pooler that are in other folders than the model's, by their names in the model."""

    @property
    def rounded_to(self) -> str | None:
        """``quantization`` with its group size, for people and for the digest."""
        return self.quantization if self.group_size is None else f"{self.quantization} in groups of {self.group_size}"

    @property
    def kept_as(self) -> str:
        """The weights' format for people: bfloat16, weights in AWQ, 4 bits in groups of 128."""
        kept = self.rounded_to if self.stored_quantization is None else self.stored_quantization.describe()
        return self.spec.dtype if kept is None else f"{self.spec.dtype}, weights in {kept}"

    @property
    def is_gguf(self) -> bool:
        return is_gguf(self.path)

    def digest(self, weights: WeightsDigest) -> str:
        """32 hex digits that identify the model: its configuration, length, quantization and ``weights``, all loaded.

        Independent of name, device and dtype. The tokenizer is left out: the engine core has none.
        """
        identity = {
            "config": self.fields,
            "default_sampling": self.spec.default_sampling,
            "eos_token_ids": self.spec.eos_token_ids,
            "max_model_len": self.spec.max_model_len,
            "quantization": self.rounded_to,
            "weights": f"dummy {self.seed}" if self.load_format == "dummy" else weights.hexdigest(),
        }
        if self.int8_activations:
            identity["int8_activations"] = True
        if self.pooler is not None:
            identity["pooler"] = repr(self.pooler)
        return digest_of(json.dumps(identity, sort_keys=True))


def open_checkpoint(config: ModelConfig, load: LoadConfig, parallel: ParallelConfig | None = None) -> Checkpoint:
    """Find the checkpoint that ``config.model`` names (see ``location``) and read its configuration.

    ``parallel`` defaults to one rank. Raises ``CheckpointError`` when the checkpoint is missing or damaged,
    ``UnsupportedModelError`` when it needs something the engine lacks, ``ConfigError`` when ``max_model_len`` is too
    long for it or it cannot be divided.
    """
    weights = load.load_format != "dummy"
    path = find_checkpoint(
        config.model, config.revision, config.download_dir, weights=weights, load_format=load.load_format
    )
    raw: Mapping[str, Any]
    if is_gguf(path):
        described = describe(read_gguf(path))
        raw, generation, generation_file = described.config, described.generation, path
    else:
        raw = with_quantization(path, read_object(path / "config.json"))
        generation_file = path / "generation_config.json"
        generation = read_object(generation_file, optional=True)
    published = raw
    if (own := _PUBLISHED_TYPES.get(str(raw.get("model_type")))) is not None:
        raw = {**raw, "model_type": own}
    architecture = _architecture(path, raw)
    if (pooling := choose_pooling(path, raw, architecture, config)) is not None:
        architecture = pooling.runs_as
    text_of = _class_around(path, raw, architecture, load)
    if text_of is not None:
        text = _text_model(path, raw, text_of, load)
        architecture, raw = text.architecture, text.fields
    vision = _vision_of(path, text_of, config, load)
    choice = choose_model(architecture, raw, config.model_impl)
    stored = _stored_quantization(path, raw, text_of, vision, choice, config, load)
    hf_config = _hf_config(path, raw, choice, as_published=raw is published)
    architecture_config = _read_config(hf_config, choice)
    if vision is not None:
        architecture_config = architecture_config.seeing(vision.shape)
    pooler = None
    if pooling is not None:
        architecture_config, pooler = _pooling(pooling, path, raw, choice, architecture_config)
    dtype_name = _dtype_name(path, text_of, config, load, hf_config, stored is not None)
    max_model_len = _max_model_len(config, choice.architecture, architecture_config, pooling)
    if vision is not None:
        vision = replace(vision, shape=resolved(vision.shape, config, max_model_len))
    spec = ModelSpec(
        name=config.served_model_name or served_name(config.model),
        architecture=choice.architecture if pooling is None else pooling.architecture,
        vocab_size=architecture_config.vocab_size,
        max_model_len=max_model_len,
        eos_token_ids=_eos_token_ids(
            path, generation, raw, _tokenizer_eos(config, path), architecture_config.vocab_size
        ),
        dtype=dtype_name,
        default_sampling=default_sampling(generation_file, generation, config),
        vision=None if vision is None else vision.shape,
        pooling=None if pooler is None else pooler.facts,
    )
    return Checkpoint(
        path,
        published,
        text_of,
        vision,
        spec,
        choice,
        _divided(architecture_config.within(spec.max_model_len), choice, parallel or ParallelConfig(), spec.vision),
        _DTYPES[dtype_name],
        config.quantization,
        _group_size(config),
        stored,
        config.int8_activations,
        load.load_format,
        config.seed,
        pooler,
        {} if pooler is None or load.load_format == "dummy" else tensors_beside(path, pooler),
    )


def _pooling(
    pooling: PoolingChoice, path: Path, raw: Mapping[str, Any], choice: ModelChoice, config: ModelShape
) -> tuple[ModelShape, PoolerConfig]:
    """The shape of a model that pools, and how it does."""
    if choice.impl != RINGLINE and not config.attends_both_ways:
        raise UnsupportedModelError(
            f"{pooling.architecture} runs through transformers' module (--model-impl), which only generates: vectors, "
            "scores and labels need a model of Ringline's own; docs/reference/models.md lists them"
        )
    pooler = pooler_config(pooling, path, raw, choice.model, config)
    if isinstance(config, ArchitectureConfig) and not config.attends_both_ways:
        return replace(config, tie_word_embeddings=True), pooler  # as if the head for tokens were the embedding
    return config, pooler


def _stored_quantization(
    path: Path,
    raw: Mapping[str, Any],
    text_of: str | None,
    vision: VisionChoice | None,
    choice: ModelChoice,
    config: ModelConfig,
    load: LoadConfig,
) -> QuantizationConfig | None:
    """The quantization of the stored weights. Raises ``UnsupportedModelError`` where the options do not go with it."""

    def tensors() -> dict[str, StoredTensor]:
        found = {choice.model.renamed(name): tensor for name, tensor in _tensors(path, text_of, load).items()}
        if vision is not None and vision.is_quantized:
            of_all = ((vision.model.renamed(name), tensor) for name, tensor in _tensors(path, None, load).items())
            found |= {name: tensor for name, tensor in of_all if name is not None}
        return found

    stored = stored_quantization(path, raw, config.quantization, tensors)
    if stored is not None and choice.impl != RINGLINE and not is_gguf(path):
        raise UnsupportedModelError(
            f"{path} has {stored.describe()}, but {choice.architecture} runs through transformers (--model-impl), for "
            "which only checkpoints that are not quantized and GGUF files are read: choose one (--quantization rounds "
            "weights that are not quantized)"
        )
    if config.int8_activations:
        require_stored_codes(path, config.quantization, stored)
    return stored


def _group_size(config: ModelConfig) -> int | None:
    """Inputs per group of --quantization int4; None without it. Raises ``ConfigError``."""
    size = config.quantization_group_size
    if config.quantization == "int4":
        return DEFAULT_GROUP_SIZE if size is None else size
    if size is not None:
        raise ConfigError("quantization_group_size", size, "no value without --quantization int4")
    return None


def _divided(
    config: ModelShape, choice: ModelChoice, parallel: ParallelConfig, vision: VisionShape | None
) -> ModelShape:
    """``config``, divided among the ranks. Raises ``ConfigError``."""
    if parallel.world_size > 1 and choice.impl != RINGLINE:
        flag = "tensor_parallel_size" if parallel.tensor_parallel_size > 1 else "pipeline_parallel_size"
        accepted = f"1, as {choice.architecture} runs through transformers (--model-impl), which only one rank can do"
        raise ConfigError(flag, getattr(parallel, flag), accepted)
    first, *others = config.stage_layers(parallel.pipeline_parallel_size)
    if others and vision is not None and vision.num_deepstack > len(first):
        wanted = f"features of pictures are added after the first {vision.num_deepstack} layers, all of which"
        accepted = f"fewer stages, as {wanted} must be in the first stage, which has {len(first)}"
        raise ConfigError("pipeline_parallel_size", parallel.pipeline_parallel_size, accepted)
    return config.for_ranks(parallel.tensor_parallel_size, expert_parallel=parallel.enable_expert_parallel)


def _architecture(path: Path, raw: Mapping[str, Any]) -> str:
    """The first architecture in config.json; Ministral's for a Mistral with ``layer_types``."""
    named = raw.get("architectures")
    if not isinstance(named, list) or not named or not isinstance(named[0], str):
        raise CheckpointError(
            f"{path / 'config.json'} names no architecture (architectures={named!r}): expected a list "
            "such as ['LlamaForCausalLM']"
        )
    if named[0] == "MistralForCausalLM" and raw.get("model_type") == "mistral" and "layer_types" in raw:
        return "MinistralForCausalLM"  # as AutoConfig does
    return canonical_architecture(multimodal.PUBLISHED_AS.get(named[0], named[0]), raw.get("model_type"))


def _class_around(path: Path, raw: Mapping[str, Any], architecture: str, load: LoadConfig) -> str | None:
    """The multimodal class whose layout the checkpoint has: its own, or that around a text model by itself."""
    if architecture in multimodal.CLASSES | deepseek_ocr.CLASSES | {deepseek_ocr.OF_TRANSFORMERS}:
        return architecture
    around = multimodal.class_around(raw.get("model_type"))
    if around is None or not multimodal.keeps_layout(raw["model_type"], _tensors(path, None, load)):
        return None
    return around


def _text_model(path: Path, raw: Mapping[str, Any], architecture: str, load: LoadConfig) -> TextModel:
    """The text model of a multimodal checkpoint. Raises ``CheckpointError``."""
    _check_counts(raw)
    stored = _tensors(path, architecture, load)
    has_head = "lm_head.weight" in stored
    if architecture in deepseek_ocr.CLASSES:
        return deepseek_ocr.text_model(raw, has_head=has_head)
    config = read_by_transformers(path)
    stacks_experts = any(name.endswith(multimodal.STACKED) for name in stored)
    try:
        if architecture == deepseek_ocr.OF_TRANSFORMERS:
            return deepseek_ocr.text_model_of_transformers(config, has_head=has_head)
        return multimodal.text_model(raw, config, has_head=has_head, stacks_experts=stacks_experts)
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path / 'config.json'}: its text model is not usable: {_reason(error)}") from error


def _vision_of(path: Path, architecture: str | None, options: ModelConfig, load: LoadConfig) -> VisionChoice | None:
    """The vision model of a checkpoint of the multimodal class ``architecture``; None if pictures are not taken.

    Its shape is not resolved yet. Raises as ``read_shape`` does, and ``ConfigError``.
    """
    overrides, limit = preprocessor_overrides(options), picture_limit(options)
    if architecture is None or options.language_model_only or not limit or is_gguf(path):
        return None
    from engine_core.vision.registry import VISION_MODELS  # loads much of transformers

    if (model := VISION_MODELS.get(architecture)) is None:
        return None
    config = _whole_config(path, architecture)
    if config.model_type != model.model_type or getattr(config, "vision_config", True) is None:
        return None
    types: set[torch.dtype | None] = set()
    if load.load_format != "dummy" and has_tensors(path, load.load_format):
        found = find_tensors(path, load.load_format)
        types = {tensor.dtype for name, tensor in found.items() if model.renamed(name) is not None}
        if not types:  # a text model by itself that keeps the class of the whole
            return None
    preprocessor = {**_preprocessor(path), **overrides}
    is_quantized = not types <= set(_DTYPES.values())
    try:
        shape = model.read_shape(config, preprocessor)
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path / 'config.json'}: its vision model is not usable: {_reason(error)}") from error
    return VisionChoice(model, config, preprocessor, shape, is_quantized)


def _whole_config(path: Path, architecture: str | None) -> PretrainedConfig:
    """The configuration of a multimodal checkpoint. Raises ``CheckpointError``."""
    if architecture in deepseek_ocr.CLASSES:
        return deepseek_ocr.read_config(read_object(path / "config.json"))
    return read_by_transformers(path)


def _preprocessor(path: Path) -> Mapping[str, Any]:
    """How pictures are prepared; empty if the checkpoint does not say."""
    if own := read_object(path / "preprocessor_config.json", optional=True):
        return own
    within = read_object(path / "processor_config.json", optional=True).get("image_processor")
    return within if isinstance(within, dict) else {}


def _tensors(path: Path, text_of: str | None, load: LoadConfig) -> dict[str, StoredTensor]:
    """The stored tensors of the model, or of the text model of a multimodal one.

    None of GGUF files, for dummy weights, and where there are no weights.
    """
    if is_gguf(path) or load.load_format == "dummy" or not has_tensors(path, load.load_format):
        return {}
    found = find_tensors(path, load.load_format)
    return found if text_of is None else _of_text(found)


def _of_text(found: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """The tensors of a multimodal checkpoint's text model, and of a layer beside it that predicts further tokens, by
    their names there.
    """
    return {
        multimodal.text_name(name): tensor
        for name, tensor in found.items()
        if multimodal.is_of_text(name) or name.startswith("mtp.")
    }


def read_by_transformers(path: Path, fields: Mapping[str, Any] | None = None) -> PretrainedConfig:
    """``fields``, by default config.json, as transformers reads them. Raises ``CheckpointError``."""
    file = path if is_gguf(path) else path / "config.json"
    try:
        config: PretrainedConfig
        if fields is None:
            config = AutoConfig.from_pretrained(path, trust_remote_code=False, local_files_only=True)
        else:
            config = CONFIG_MAPPING[fields["model_type"]].from_dict(copy.deepcopy(dict(fields)))
    except Exception as error:  # its validators raise many kinds
        raise CheckpointError(f"{file} is not usable: {_reason(error)}") from error
    return config


def _hf_config(path: Path, raw: Mapping[str, Any], choice: ModelChoice, *, as_published: bool) -> PretrainedConfig:
    """``raw`` as transformers reads it: with defaults, and older spellings updated.

    ``as_published``: it is what config.json says.
    """
    file = path if is_gguf(path) else path / "config.json"
    _check_names(file, raw, choice)
    _check_counts(raw)
    _check_kinds(raw)
    if not raw.get("is_causal", True):  # false makes any of transformers' decoders an encoder
        raise UnsupportedModelError(
            f"{file}: is_causal={raw['is_causal']!r} is not supported: expected true, as no token may attend to later "
            "ones"
        )
    choice.model.check_raw_config(raw)
    config = read_by_transformers(path, None if as_published and file != path else raw)
    if config.model_type not in choice.model_types:
        raise _contradiction(file, choice, config.model_type)
    return config


def _contradiction(path: Path, choice: ModelChoice, model_type: object) -> CheckpointError:
    expected = " or ".join(map(repr, choice.model_types))
    return CheckpointError(
        f"{path} contradicts itself: {choice.architecture} has model_type {expected}, not {model_type!r}"
    )


def _check_counts(raw: Mapping[str, Any]) -> None:
    """Refuse counts of layers, blocks and labels, at any depth, for which transformers would build huge lists."""
    left: list[tuple[str, Any]] = list(raw.items())
    while left:
        name, value = left.pop()
        if isinstance(value, dict):
            left += value.items()
        elif isinstance(value, list):
            left += ((name, each) for each in value)
        elif isinstance(value, int) and value > MOST_LAYERS and _COUNTS.search(name):
            raise CheckpointError(f"{name}={value} is not usable: expected at most {MOST_LAYERS}")


def _check_kinds(raw: Mapping[str, Any]) -> None:
    """Refuse values of the wrong kind in fields that transformers would not name in its errors."""
    for name in _LAYER_TYPES:
        kinds = raw.get(name)
        if kinds is not None and not (isinstance(kinds, list) and all(isinstance(each, str) for each in kinds)):
            raise CheckpointError(
                f"{name}={reprlib.repr(kinds)} is not usable: expected a list with the type of each layer"
            )
    if not isinstance(width := raw.get("head_dim"), int | float | None):
        raise CheckpointError(f"head_dim={reprlib.repr(width)} is not usable: expected a positive whole number")


def _read_config(config: PretrainedConfig, choice: ModelChoice) -> ModelShape:
    """The model's shape. The error for an unsupported model says whether the fallback may run it."""
    if choice.impl == RINGLINE and not choice.model.reads_per_layer_config:
        require_like_layers(config)
    try:
        return choice.model.read_config(config)
    except UnsupportedModelError as error:
        if fallback_may_run(choice, config):
            raise UnsupportedModelError(f"{error}; --model-impl transformers may run it") from error
        raise


def _check_names(path: Path, raw: Mapping[str, Any], choice: ModelChoice) -> None:
    """Refuse a ``model_type`` or dtype with an unknown name."""
    own = [each.model_type for each in (*ARCHITECTURES.values(), *ENCODERS.values())]
    known = own if choice.impl == RINGLINE else list(CONFIG_MAPPING)  # lists: the file's value may be unhashable
    if (model_type := raw.get("model_type")) is not None and model_type not in known:
        raise _contradiction(path, choice, model_type)
    for key in ("dtype", "torch_dtype"):
        name = raw.get(key)
        if name is not None and not (isinstance(name, str) and isinstance(getattr(torch, name, None), torch.dtype)):
            raise CheckpointError(f"{path}: {key}={name!r} is not usable: expected one of {', '.join(_DTYPES)}")


def _reason(error: Exception) -> str:
    """Why transformers refuses a configuration, in one line."""
    cause = error.__cause__ if isinstance(error, StrictDataclassError) and error.__cause__ else error
    reason, _, _ = " ".join(str(cause).split()).partition(". Errors: ")  # repeats it for each accepted type
    return reason or type(error).__name__


def _dtype_name(
    path: Path,
    text_of: str | None,
    config: ModelConfig,
    load: LoadConfig,
    hf_config: PretrainedConfig,
    is_quantized: bool,
) -> str:
    """The type in the options, else in config.json, else of the stored tensors.

    For dummy weights without files, float32, or bfloat16 if quantized.
    """
    if config.dtype != "auto":
        return config.dtype
    dtype = hf_config.dtype
    if dtype is None:
        has_weights = load.load_format != "dummy" or has_tensors(path)
        if has_weights:
            found = find_tensors(path, load.load_format)
            dtype = _first_dtype(found if text_of is None else _of_text(found))
        else:
            dtype = torch.bfloat16 if is_quantized else torch.float32
    name = str(dtype).removeprefix("torch.")
    if name not in _DTYPES:
        raise UnsupportedModelError(
            f"{path} has weights in {name}, which is not supported: set --dtype to one of {', '.join(_DTYPES)}"
        )
    return name


def _first_dtype(tensors: Mapping[str, StoredTensor]) -> torch.dtype:
    """The type of the first floating-point tensor; float32 if there is none, which is refused later."""
    dtypes = (tensor.dtype for tensor in tensors.values())
    return next((dtype for dtype in dtypes if dtype is not None and dtype.is_floating_point), torch.float32)


def _max_model_len(
    config: ModelConfig, architecture: str, limits: ModelShape, pooling: PoolingChoice | None = None
) -> int:
    """The length in the options, by default, for nearly all models, the longest that the checkpoint allows; of inputs
    that are pooled, the longest that sentence-transformers takes.
    """
    longest, default = limits.longest_sequence, limits.default_length
    if pooling is not None and pooling.layout.max_length is not None:
        default = min(default, pooling.layout.max_length)
    length = default if config.max_model_len is None else config.max_model_len
    if length > longest:
        raise ConfigError(
            "max_model_len",
            length,
            f"at most {longest}, which is what the checkpoint allows "
            f"(max_position_embeddings {limits.max_position_embeddings}{_rope_types(limits)})",
        )
    if length >= 2**31:
        raise UnsupportedModelError(f"{architecture} would take {length} tokens: set --max-model-len to less than 2³¹")
    if length < 2:
        raise UnsupportedModelError(
            f"{architecture} takes {length} token (max_position_embeddings {limits.max_position_embeddings}): a prompt "
            "and its output need at least 2"
        )
    return length


def _rope_types(limits: ModelShape) -> str:
    """The RoPE types that limit a sequence's length, as the end of a list."""
    types = dict.fromkeys(rope.rope_type for rope in limits.distinct_ropes)
    return f", rope type {' and '.join(types)}" if types else ""


def _eos_token_ids(
    path: Path, generation: Mapping[str, Any], raw: Mapping[str, Any], tokenizers: int | None, vocab_size: int
) -> tuple[int, ...]:
    """The eos ids in generation_config.json, else in config.json; and the tokenizer's, as in vLLM.

    A chat model may end its turns with a token that only its tokenizer names.
    """
    value = generation.get("eos_token_id")
    if value is None:
        value = raw.get("eos_token_id")
    ids = [] if value is None else value if isinstance(value, list) else [value]
    if not all(type(token) is int and 0 <= token < vocab_size for token in ids):
        raise CheckpointError(
            f"{path}: eos_token_id={value!r} is not usable: expected ids below vocab_size {vocab_size}"
        )
    if tokenizers is not None and 0 <= tokenizers < vocab_size:
        ids = [*ids, tokenizers]
    return tuple(dict.fromkeys(ids))


def _tokenizer_eos(config: ModelConfig, path: Path) -> int | None:
    """The id of the tokenizer's eos token; None if its files name none or do not list its id."""
    own = config.tokenizer in (None, config.model) and config.tokenizer_revision is None
    directory = path if own else tokenizer_source(config)
    if is_gguf(directory):  # the model's own eos is in its generation config
        return None if own else next(iter(eos_token_ids(read_gguf(directory))), None)
    declared = read_object(directory / "tokenizer_config.json", optional=True)
    listed = declared.get("added_tokens_decoder")
    if listed is None:  # older tokenizers name them in special_tokens_map.json
        declared |= read_object(directory / "special_tokens_map.json", optional=True)
    eos = declared.get("eos_token")
    if eos is None:
        return None
    try:
        content = eos["content"] if isinstance(eos, dict) else str(eos)
        if listed is None:
            tokens = read_object(directory / "tokenizer.json", optional=True).get("added_tokens", [])
            listed = {token["id"]: token for token in tokens}
        return next((int(token_id) for token_id, token in listed.items() if token["content"] == content), None)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{directory}: the special tokens of its tokenizer cannot be read ({error!r})") from error
