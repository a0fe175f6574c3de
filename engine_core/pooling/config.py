"""How a checkpoint pools: sentence-transformers' layout (modules.json), its config.json, and ``--pooler-config``.

``read_layout`` reads files; ``PoolerConfig`` is the outcome, from which ``pooler`` is made.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from engine_core.errors import CheckpointError, UnsupportedModelError, written
from engine_core.pooling.facts import PairForm, PoolingFacts, Similarity
from engine_core.pooling.options import PoolerOptions
from engine_core.pooling.params import PoolingTask

MOST_LABELS = 4096
_MOST_WIDTH = 2**20
_VECTOR = "sentence_embedding"
"""Sentence-transformers' name of what Pooling makes, and what Dense layers read and write."""
_MOST_LENGTH = 2**31 - 1
_MOST_TEXT_BYTES = 1 << 20
"""Of a model's prompts, and of the names of its labels: clients are told them."""


class PoolingType(enum.Enum):
    """Of which hidden states a whole input's result is made."""

    LAST = "the last token's"
    CLS = "the first token's"
    MEAN = "the mean of all tokens'"
    MAX = "the greatest of all tokens' in each place"
    MEAN_SQRT_LEN = "the sum of all tokens', divided by the square root of their number"
    WEIGHTED_MEAN = "the mean of all tokens', weighted by their positions"


class HeadActivation(enum.Enum):
    """What becomes of a head's numbers."""

    NONE = "none"
    SIGMOID = "sigmoid"
    SOFTMAX = "softmax"


class HeadKind(enum.Enum):
    """Where the numbers of labels come from."""

    CLASSIFIER = "the model's classifier"
    TOKENS = "the language model's head, for some tokens"


@dataclass(frozen=True, slots=True)
class DenseLayer:
    """A linear layer behind pooling (sentence-transformers' Dense)."""

    folder: str
    """Of its configuration and weights, below the checkpoint's; also the prefix of its tensors."""
    inputs: int
    outputs: int
    bias: bool
    activation: str
    """One of ``DENSE_ACTIVATIONS``."""


@dataclass(frozen=True, slots=True)
class TokenHead:
    """Labels that are tokens, whose numbers the language model's head has."""

    tensor: str
    """Its weight: [V, H]."""
    token_ids: tuple[int, ...]
    is_difference: bool
    """Of two tokens: the number of the only label is that of the second, less that of the first."""
    scale: float = 1.0
    """Of the head's numbers."""
    softcap: float | None = None
    """What their tanh, times this, bounds; None: nothing."""


@dataclass(frozen=True, slots=True)
class PoolerConfig:
    """How hidden states become results, resolved against the options."""

    facts: PoolingFacts
    pooling: PoolingType
    dense: tuple[DenseLayer, ...] = ()
    tokens: TokenHead | None = None
    """None: labels have numbers of the model's classifier, or there are none."""
    activation: HeadActivation = HeadActivation.NONE

    @property
    def classifies(self) -> bool:
        """Whether there is a head for labels."""
        return bool(self.facts.labels)


@dataclass(frozen=True, slots=True)
class Layout:
    """What a checkpoint's files say of pooling besides config.json; all empty without modules.json."""

    pooling: PoolingType | None = None
    dense: tuple[DenseLayer, ...] = ()
    normalizes: bool = False
    tokens: tuple[int, ...] = ()
    """Ids of the tokens of a LogitScore: the second one's number, less the first one's, or that of the only one."""
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str = ""
    similarity: Similarity = Similarity.COSINE
    max_length: int | None = None
    """Of inputs, in tokens."""
    dimensions: int | None = None
    """Leading numbers of a vector that are kept."""
    activation: HeadActivation | None = None
    """Of a head's numbers."""

    @property
    def is_there(self) -> bool:
        """Whether sentence-transformers made the checkpoint for pooling."""
        return self.pooling is not None or bool(self.tokens)


DENSE_ACTIVATIONS = ("Identity", "Tanh", "ReLU", "GELU", "Sigmoid", "SiLU")
"""Classes of torch.nn that Dense layers may have."""
_ACTIVATION_PATHS = ("torch.nn.modules.activation.", "torch.nn.modules.linear.", "torch.nn.")
_MODES = {
    "cls": PoolingType.CLS,
    "lasttoken": PoolingType.LAST,
    "mean": PoolingType.MEAN,
    "max": PoolingType.MAX,
    "mean_sqrt_len_tokens": PoolingType.MEAN_SQRT_LEN,
    "weightedmean": PoolingType.WEIGHTED_MEAN,
}
_OLD_MODES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
_TRANSFORMERS = "bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet"
"""Parts of the names of a Transformer module's file."""
_PLACES = {"Transformer": 0, "Pooling": 1, "Dense": 2, "Normalize": 3, "LogitScore": 1}
"""The modules that are known, and their order."""

ReadObject = Any
"""``model_loader.json_files.read_object``."""


def read_layout(path: Path, read_object: ReadObject, read_list: ReadObject) -> Layout:
    """Read the files of sentence-transformers below the directory ``path``.

    Raises ``CheckpointError``, and ``UnsupportedModelError`` for modules and modes that are not known.
    """
    file = path / "modules.json"
    modules = read_list(file, optional=True)
    layout, place = Layout(), 0
    for module in modules:
        kind, folder = _module(file, module)
        if kind not in _PLACES or _PLACES[kind] < place:
            known = "Transformer, Pooling, Dense and Normalize, in this order, or Transformer and LogitScore"
            raise UnsupportedModelError(f"{file}: the module {kind} is not supported there: expected {known}")
        place = _PLACES[kind]
        if kind == "Transformer":
            if folder:
                raise UnsupportedModelError(
                    f"{file}: the Transformer in {folder!r} is not read: expected it beside this file"
                )
            continue
        fields = read_object(path / folder / "config.json", optional=kind == "Normalize") if folder else {}
        layout = _with_module(layout, kind, folder, path / folder / "config.json", fields)
    general = read_object(path / "config_sentence_transformers.json", optional=True) if modules else {}
    of_length, bert = transformer_fields(path, read_object) if modules else (path, {})
    of_prompts = path / "config_sentence_transformers.json"
    prompts, default = _prompts(of_prompts, general)
    length = bert.get("max_seq_length")
    if length is not None and not (type(length) is int and 1 <= length <= _MOST_LENGTH):
        raise CheckpointError(f"{of_length}: max_seq_length={length!r} is no number of tokens")
    if length is None and modules:
        length = _tokenizers_length(read_object(path / "tokenizer_config.json", optional=True))
    return replace(
        layout,
        prompts=prompts,
        default_prompt=default,
        similarity=_similarity(of_prompts, general),
        max_length=length,
        dimensions=_width(of_prompts, general, "truncate_dim") if general.get("truncate_dim") is not None else None,
        activation=_activation(general.get("activation_fn")),
    )


def transformer_fields(path: Path, read_object: ReadObject) -> tuple[Path, Mapping[str, Any]]:
    """The file of the Transformer module, which has had several names, and its fields; empty if there is none."""
    for kind in _TRANSFORMERS:
        file = path / f"sentence_{kind}_config.json"
        if fields := read_object(file, optional=True):
            return file, fields
    return path, {}


def _similarity(file: Path, fields: Mapping[str, Any]) -> Similarity:
    named = fields.get("similarity_fn_name") or Similarity.COSINE.value
    try:
        return Similarity(named)
    except ValueError:
        known = ", ".join(each.value for each in Similarity)
        raise UnsupportedModelError(
            f"{file}: similarity_fn_name={named!r} is not supported: expected one of {known}"
        ) from None


def _tokenizers_length(fields: Mapping[str, Any]) -> int | None:
    """What newer releases write in place of ``max_seq_length``; huge numbers, which stand for any length, are none."""
    length = fields.get("model_max_length")
    return length if type(length) is int and 1 <= length <= _MOST_LENGTH else None


def _prompts(file: Path, fields: Mapping[str, Any]) -> tuple[dict[str, str], str]:
    """The prompts by their names, and the name of the default one."""
    prompts = fields.get("prompts") or {}
    if not isinstance(prompts, dict) or not all(isinstance(text, str) for text in prompts.values()):
        raise CheckpointError(f"{file}: prompts={prompts!r} is no object of texts")
    _check_texts(f"{file}: prompts", [*prompts, *prompts.values()])
    default = fields.get("default_prompt_name") or ""
    if not isinstance(default, str) or (default and default not in prompts):
        raise CheckpointError(f"{file}: default_prompt_name={default!r} is none of its prompts")
    return prompts, default


def _check_texts(name: str, texts: Iterable[str]) -> None:
    """Raise ``CheckpointError`` for texts that are no Unicode (JSON can have half a character), or too large."""
    try:
        size = sum(len(text.encode()) for text in texts)
    except UnicodeEncodeError as error:
        raise CheckpointError(f"{name} has half a character: {error.object[error.start : error.end]!r}") from None
    if size > _MOST_TEXT_BYTES:
        raise CheckpointError(f"{name} has {size} bytes: expected at most {_MOST_TEXT_BYTES}")


def _module(file: Path, module: object) -> tuple[str, str]:
    """The class, without its package, and the folder of one of the ``modules``."""
    if isinstance(module, dict):
        kind, folder = module.get("type"), module.get("path", "")
        is_inside = isinstance(folder, str) and not Path(folder).is_absolute() and ".." not in Path(folder).parts
        if isinstance(kind, str) and is_inside:
            return kind.rpartition(".")[2], folder
    raise CheckpointError(f"{file} has {module!r}: expected modules with a type, and a path below the checkpoint's")


def _with_module(layout: Layout, kind: str, folder: str, file: Path, fields: Mapping[str, Any]) -> Layout:
    match kind:
        case "Pooling":
            return replace(layout, pooling=_pooling_type(file, fields))
        case "Dense":
            return replace(layout, dense=(*layout.dense, _dense(folder, file, fields)))
        case "LogitScore":
            ids = [fields.get("false_token_id"), fields.get("true_token_id")]
            if not all(type(each) is int for each in ids if each is not None) or ids[1] is None:
                raise CheckpointError(f"{file}: true_token_id and false_token_id are no ids of tokens: {ids!r}")
            return replace(layout, tokens=tuple(each for each in ids if each is not None))
    return replace(layout, normalizes=True)


def _pooling_type(file: Path, fields: Mapping[str, Any]) -> PoolingType:
    modes = fields.get("pooling_mode")
    if modes is None:
        modes = [mode for name, mode in _OLD_MODES.items() if fields.get(name)] or ["mean"]
    modes = [modes] if isinstance(modes, str) else modes
    if not isinstance(modes, list) or len(modes) != 1 or modes[0] not in list(_MODES):
        raise UnsupportedModelError(
            f"{file}: pooling by {modes!r} is not supported: expected one of {', '.join(_MODES)}"
        )
    found = _MODES[modes[0]]
    if not fields.get("include_prompt", True) and found is not PoolingType.LAST:
        raise UnsupportedModelError(f"{file}: include_prompt=false is not supported: all tokens of an input are pooled")
    return found


def _dense(folder: str, file: Path, fields: Mapping[str, Any]) -> DenseLayer:
    inputs, outputs = _width(file, fields, "in_features"), _width(file, fields, "out_features")
    given = fields.get("activation_function", "torch.nn.modules.activation.Tanh")
    name = str(given)
    for path in _ACTIVATION_PATHS:
        name = name.removeprefix(path)
    if name not in DENSE_ACTIVATIONS:
        expected = ", ".join(DENSE_ACTIVATIONS)
        raise UnsupportedModelError(f"{file}: activation_function={given!r} is not supported: expected {expected}")
    reads, writes = (fields.get(f"module_{end}_name") or _VECTOR for end in ("input", "output"))
    if (reads, writes) != (_VECTOR, _VECTOR) or fields.get("use_residual"):
        what = "use_residual"
        if reads != _VECTOR or writes != _VECTOR:
            what = f"module_input_name={reads!r}" if reads != _VECTOR else f"module_output_name={writes!r}"
        raise UnsupportedModelError(
            f"{file}: {what} is not supported: expected a layer after pooling, without residual"
        )
    return DenseLayer(folder, inputs, outputs, bool(fields.get("bias", True)), name)


def _width(file: Path, fields: Mapping[str, Any], name: str) -> int:
    size = fields.get(name)
    if type(size) is not int or not 1 <= size <= _MOST_WIDTH:
        raise CheckpointError(f"{file}: {name}={size!r} is not usable: expected a number from 1 to {_MOST_WIDTH}")
    return size


def read_labels(fields: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of the labels in config.json, in order. Raises ``CheckpointError``."""
    names, count = fields.get("id2label"), fields.get("num_labels")
    if names is None:
        count = 2 if count is None else count  # transformers' default
        if type(count) is not int or not 1 <= count <= MOST_LABELS:
            raise CheckpointError(f"num_labels={count!r} is not usable: expected a number from 1 to {MOST_LABELS}")
        return tuple(f"LABEL_{index}" for index in range(count))
    if not isinstance(names, dict) or not 1 <= len(names) <= MOST_LABELS:
        raise CheckpointError(f"id2label is not usable: expected an object of 1 to {MOST_LABELS} names by number")
    by_number = {str(number): str(name) for number, name in names.items()}
    if by_number.keys() != set(map(str, range(len(names)))):
        raise CheckpointError(f"id2label is not usable: expected the numbers from 0 to {len(names) - 1}")
    _check_texts("id2label", by_number.values())
    return tuple(by_number[str(number)] for number in range(len(names)))


def _activation(named: object) -> HeadActivation | None:
    """That of the class ``named``, if any. Raises ``UnsupportedModelError``."""
    if not isinstance(named, str):
        return None
    found = {"Identity": HeadActivation.NONE, "Sigmoid": HeadActivation.SIGMOID, "Softmax": HeadActivation.SOFTMAX}
    kind = named.rpartition(".")[2]
    if kind not in found:
        raise UnsupportedModelError(f"activation_fn={named!r} is not supported: expected one of {', '.join(found)}")
    return found[kind]


def named_activation(fields: Mapping[str, Any]) -> HeadActivation | None:
    """What sentence-transformers' field in config.json says becomes of the numbers of labels; None: nothing."""
    nested = fields.get("sentence_transformers")
    named = nested.get("activation_fn") if isinstance(nested, dict) else None
    return _activation(fields.get("sbert_ce_default_activation_function") if named is None else named)


def read_activation(fields: Mapping[str, Any], num_labels: int) -> HeadActivation:
    """What config.json says becomes of the numbers of labels: sentence-transformers' field, else ``problem_type``."""
    if (named := named_activation(fields)) is not None:
        return named
    match fields.get("problem_type"):
        case "regression":
            return HeadActivation.NONE
        case "multi_label_classification":
            return HeadActivation.SIGMOID
    return HeadActivation.SIGMOID if num_labels == 1 else HeadActivation.SOFTMAX


@dataclass(frozen=True, slots=True)
class Sources:
    """Everything that decides how a model pools."""

    layout: Layout
    options: PoolerOptions
    fields: Mapping[str, Any]
    """config.json."""
    tasks: tuple[PoolingTask, ...]
    """Those that the model's class is made for; with tokens as labels, they are others."""
    hidden_size: int
    default_pooling: PoolingType
    """Of the model's class."""
    attends_both_ways: bool
    head: TokenHead
    """The language model's head, without tokens."""
    token_ids: tuple[int, ...]
    """Of ``options.classifier_from_token``."""
    pair_form: PairForm
    """How a model of this class would get pairs."""


def resolved(sources: Sources) -> PoolerConfig:
    """Raises ``CheckpointError``, ``UnsupportedModelError``."""
    tokens = _token_head(sources)
    tasks = (PoolingTask.CLASSIFY,) if tokens is not None else sources.tasks
    if not any(task.embeds for task in tasks):
        return _classifier(sources, tokens, tasks)
    return _embedder(sources, tasks)


def _token_head(sources: Sources) -> TokenHead | None:
    ids = sources.token_ids or sources.layout.tokens
    if ids and not sources.head.tensor:
        raise UnsupportedModelError(
            "classifier_from_token (of --pooler-config) or a LogitScore module asks for numbers of tokens, but this "
            "model is an encoder without a language model's head: leave it out"
        )
    return replace(sources.head, token_ids=ids, is_difference=len(ids) == 2) if ids else None


def _classifier(sources: Sources, tokens: TokenHead | None, tasks: tuple[PoolingTask, ...]) -> PoolerConfig:
    options = sources.options
    if tokens is None:
        labels = read_labels(sources.fields)
        activation = sources.layout.activation or read_activation(sources.fields, len(labels))
    else:
        names = options.classifier_from_token or tokens.token_ids
        labels = tuple(str(name) for name in (names[1:] if tokens.is_difference else names))
        default = HeadActivation.SIGMOID if len(labels) == 1 else HeadActivation.SOFTMAX
        said = None if options.classifier_from_token else sources.layout.activation
        activation = said or named_activation(sources.fields) or default
    if options.use_activation is False:
        activation = HeadActivation.NONE
    pooling = PoolingType.LAST if tokens is not None else sources.default_pooling
    pooling = _chosen(options, sources.layout, pooling)
    is_pair = len(labels) == 1 and PoolingTask.CLASSIFY in tasks
    instructs = is_pair and sources.pair_form is PairForm.TEMPLATE
    facts = PoolingFacts(
        tasks=_served(tasks, options),
        labels=labels,
        prompts=sources.layout.prompts if instructs else {},
        default_prompt=sources.layout.default_prompt if instructs else "",
        pair_form=sources.pair_form if is_pair else None,
        reads_last=pooling is PoolingType.LAST,
        attends_both_ways=sources.attends_both_ways,
    )
    return PoolerConfig(facts, pooling, (), tokens, activation)


def _embedder(sources: Sources, tasks: tuple[PoolingTask, ...]) -> PoolerConfig:
    layout, options = sources.layout, sources.options
    width = sources.hidden_size
    for layer in layout.dense:
        if layer.inputs != width:
            raise CheckpointError(
                f"{layer.folder}/config.json: in_features={layer.inputs} is not usable: expected {width}"
            )
        width = layer.outputs
    normalizes = layout.normalizes if layout.is_there else True
    for said in (options.use_activation, options.normalize):
        normalizes = normalizes if said is None else said
    trained = _trained_dimensions(options, sources.fields, width)
    is_matryoshka = bool(trained or layout.dimensions or sources.fields.get("is_matryoshka"))
    width = min(width, layout.dimensions or width)
    if options.is_matryoshka is not None:
        is_matryoshka, trained = options.is_matryoshka, trained if options.is_matryoshka else ()
    pooling = _chosen(options, layout, sources.default_pooling)
    dimensions = _dimensions(options, width, trained, is_matryoshka=is_matryoshka)
    facts = PoolingFacts(
        tasks=_served(tasks, options),
        dimensions=dimensions,
        is_matryoshka=is_matryoshka,
        matryoshka_dimensions=tuple(each for each in trained if each <= dimensions),
        normalizes=normalizes,
        prompts=layout.prompts,
        default_prompt=layout.default_prompt,
        similarity=layout.similarity,
        reads_last=pooling is PoolingType.LAST,
        attends_both_ways=sources.attends_both_ways,
    )
    return PoolerConfig(facts, pooling, layout.dense)


def _dimensions(options: PoolerOptions, width: int, trained: tuple[int, ...], *, is_matryoshka: bool) -> int:
    """The numbers of a vector, of the ``width`` that the model makes. Raises ``UnsupportedModelError``."""
    wanted = width if options.dimensions is None else options.dimensions
    if wanted == width or (is_matryoshka and wanted < width and (not trained or wanted in trained)):
        return wanted
    if not is_matryoshka:
        accepted = f"{width}, as its vectors cannot be cut (matryoshka_dimensions there says that they can)"
    else:
        accepted = f"one of {', '.join(map(str, trained))}" if trained else f"at most {width}"
    raise UnsupportedModelError(f"--pooler-config has dimensions {wanted}: expected {accepted}")


def _chosen(options: PoolerOptions, layout: Layout, default: PoolingType) -> PoolingType:
    if options.pooling_type in (None, "ALL"):
        return layout.pooling or default
    return PoolingType[str(options.pooling_type)]


def _served(tasks: tuple[PoolingTask, ...], options: PoolerOptions) -> tuple[PoolingTask, ...]:
    """``tasks``, or those of them that the options leave. Raises ``UnsupportedModelError`` if none is left."""
    left = tasks if options.pooling_type != "ALL" else tuple(task for task in tasks if task.per_token)
    left = left if options.task is None else tuple(task for task in left if task is options.task)
    if not left:
        raise UnsupportedModelError(
            f"--pooler-config leaves nothing that this model computes: expected a pooling_type and a task that go with "
            f"one of {', '.join(task.value for task in tasks)}"
        )
    return left


def _trained_dimensions(options: PoolerOptions, fields: Mapping[str, Any], width: int) -> tuple[int, ...]:
    """The dimensions in the options, else in config.json. Raises ``CheckpointError``, ``UnsupportedModelError``."""
    if options.matryoshka_dimensions:
        if (most := options.matryoshka_dimensions[-1]) > width:
            raise UnsupportedModelError(
                f"--pooler-config has matryoshka_dimensions of {most}: expected at most {width}"
            )
        return options.matryoshka_dimensions
    given = fields.get("matryoshka_dimensions") or ()
    if not isinstance(given, list | tuple) or not all(type(each) is int and 1 <= each <= width for each in given):
        raise CheckpointError(
            f"matryoshka_dimensions={written(given)} is not usable: expected a list of numbers from 1 to {width}"
        )
    return tuple(sorted(set(given)))
