"""The engine's options: frozen dataclasses, composed into ``EngineConfig``.

Each option is declared once, here. Declarations besides type and default are the metadata of its field: plain data,
from which ``services.common.config.options`` makes the flag, the ``RINGLINE_…`` variable and the documentation. An
unusable value raises ``ConfigError`` at construction. ``None`` means "derive it"; nothing is changed afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from engine_core.errors import ConfigError
from engine_core.media import VisionShape
from engine_core.pooling.facts import PoolingFacts
from engine_core.speculation import SpeculativeConfig, read_speculative_config


def option(default: Any, help: str, **declared: Any) -> Any:
    """A dataclass field for an option. ``declared``: ``choices``, ``otherwise`` (advice for a value outside them),
    ``minimum``, ``maximum``, ``unit`` ("bytes").
    """
    return field(default=default, metadata={"help": help, **declared})


def options_of(section: type[Any]) -> dict[str, Mapping[str, Any]]:
    """The declarations of one dataclass's options, by field name, in order."""
    return {f.name: f.metadata for f in fields(section) if f.metadata}


_TYPES: dict[str, tuple[tuple[type, ...], str]] = {
    "bool": ((bool,), "True or False"),
    "int": ((int,), "an integer"),
    "float": ((float, int), "a number"),
    "str": ((str,), "a string"),
}
"""The accepted types for an option's annotation, and their description for a person."""


class _Section:
    """Raises ``ConfigError`` for the first option whose value has the wrong type or is out of range."""

    __slots__ = ()

    def __post_init__(self) -> None:
        annotations = {f.name: str(f.type) for f in fields(self)}  # type: ignore[arg-type]
        for name, declared in options_of(type(self)).items():
            value = getattr(self, name)
            annotation = annotations[name].removesuffix(" | None")
            if value is None and annotation != annotations[name]:
                continue
            types, noun = _TYPES[annotation]
            if type(value) not in types:
                raise ConfigError(name, value, noun)
            if "choices" in declared and value not in declared["choices"]:
                choices = "one of " + ", ".join(map(str, declared["choices"]))
                raise ConfigError(name, value, "; ".join(filter(None, (choices, declared.get("otherwise")))))
            # Written to refuse NaN, too, for which every comparison is false.
            if "minimum" in declared and not value >= declared["minimum"]:
                raise ConfigError(name, value, f"a value of at least {declared['minimum']}")
            if "maximum" in declared and not value <= declared["maximum"]:
                raise ConfigError(name, value, f"a value of at most {declared['maximum']}")


@dataclass(frozen=True, slots=True)
class ModelConfig(_Section):
    """Which model, and how it is read."""

    model: str = option("", "Checkpoint: a directory, a GGUF file or a hub id (of a GGUF file as org/name:Q4_K_M).")
    served_model_name: str | None = option(
        None, "Name of the model for clients. Default: the hub id, or the directory's or file's name."
    )
    tokenizer: str | None = option(
        None, "Directory, GGUF file or hub id of the tokenizer; default: the checkpoint's own."
    )
    skip_tokenizer_init: bool = option(
        False, "Read no tokenizer: prompts are token ids and so are answers, whose texts are empty; no grammars."
    )
    revision: str | None = option(None, "Branch, tag or commit of the model's hub id.")
    tokenizer_revision: str | None = option(
        None,
        "Branch, tag or commit of the tokenizer's hub id; default: that of --revision, unless --tokenizer "
        "names another hub id than the model's.",
    )
    download_dir: str | None = option(None, "Where hub downloads are kept; default: the hub library's cache.")
    dtype: str = option(
        "auto",
        "Type of weights, activations and KV cache; auto takes the checkpoint's.",
        choices=("auto", "float32", "bfloat16", "float16"),
    )
    max_model_len: int | None = option(
        None,
        "Most tokens of a prompt and its output together; default: what the checkpoint allows. Above the "
        "original length of a model with LongRoPE, its factors for long sequences are used for all sequences.",
        minimum=2,
    )
    quantization: str | None = option(
        None,
        "Rounds weights of linear layers and experts when they are loaded: to int4, or to int8 and their inputs in "
        "every step, too. Default: weights stay as the checkpoint has them, quantized or not.",
        choices=("int8", "int4"),
        otherwise="leave the option out for a checkpoint that is quantized already, which says how",
    )
    quantization_group_size: int | None = option(
        None,
        "Inputs of an output that share a scale and a minimum with --quantization int4. More take less memory, and "
        "lose accuracy. Default: 32.",
        choices=(32, 64, 128),
    )
    int8_activations: bool = option(
        False,
        "On a CPU: multiply weights that are stored as integers of 4 or 8 bits by inputs that are rounded to 8 bits in "
        "every step, one scale for at most 128 of them. Faster for several sequences and for prompts; results change.",
    )
    language_model_only: bool = option(
        False,
        "Of a multimodal checkpoint, serves its text model alone: pictures are refused, no vision model is loaded.",
    )
    limit_mm_per_prompt: str | None = option(
        None,
        'JSON object with the most pictures of a prompt, such as {"image": 4}. Default: 64. With 0 none are taken, and '
        "the checkpoint's vision model is not loaded.",
    )
    mm_processor_kwargs: str | None = option(
        None,
        "JSON object of fields that win over the checkpoint's preprocessor_config.json, which says how pictures are "
        'prepared, such as {"max_pixels": 1003520}.',
    )
    max_picture_tokens: int | None = option(
        None,
        "Most tokens of a picture, for models that shrink pictures to any size (Qwen-VL): larger ones are shrunk. "
        "Default: 4096, or what the checkpoint or the context allows if that is less.",
        minimum=1,
    )
    model_impl: str = option(
        "auto",
        "Implementation of the model: ringline, or transformers with Ringline's attention, cache and linear "
        "layers (slower; dense decoders only). auto takes ringline where it has the architecture.",
        choices=("auto", "ringline", "transformers"),
    )
    runner: str = option(
        "auto",
        "What the model is for: generate makes tokens, pooling makes vectors, scores or labels of whole inputs. auto "
        "takes pooling for checkpoints that are made for it (modules.json, classifiers, encoders), else generate.",
        choices=("auto", "generate", "pooling"),
        otherwise="tasks such as embed, score and classify are of pooling; a request says which",
    )
    pooler_config: str | None = option(
        None,
        "JSON object that says how hidden states are pooled, over what the checkpoint says: pooling_type (LAST, CLS, "
        "MEAN or ALL), normalize, dimensions, use_activation, task (embed, token_embed, classify or token_classify) "
        'and classifier_from_token, such as {"classifier_from_token": ["no", "yes"]}.',
    )
    chat_template: str | None = option(
        None,
        "File of a chat template in Jinja, or its text, instead of the checkpoint's.",
    )
    generation_config: str = option(
        "auto",
        "Defaults of sampling: auto takes those in the checkpoint's generation_config.json (of smollm2, which has "
        "none: its model card's), none takes neutral ones.",
        choices=("auto", "none"),
    )
    override_generation_config: str | None = option(
        None,
        "JSON object of defaults of sampling that win over --generation-config: temperature, top_k (0 or -1: all "
        "tokens), top_p, min_p and repetition_penalty.",
    )
    seed: int = option(0, "Seed of the random weights of --load-format dummy.", minimum=0, maximum=2**64 - 1)


@dataclass(frozen=True, slots=True)
class CacheConfig(_Section):
    """The paged KV cache."""

    gpu_memory_utilization: float = option(
        0.9,
        "Share of the device's memory that weights, activations and KV cache may take together (on a CPU: of "
        "the memory that this process may use). Several ranks of a host divide its memory first.",
        minimum=0.01,
        maximum=1.0,
    )
    kv_cache_memory_bytes: int | None = option(
        None,
        "Size of the KV cache (of each rank's), which is then allocated at once. Default: what weights and the largest "
        "step leave of --gpu-memory-utilization, allocated as the cache fills.",
        minimum=1,
        unit="bytes",
    )
    kv_cache_dtype: str = option(
        "auto",
        "Type of the KV cache: auto takes the model's (--dtype); int8 and fp8 take half of bfloat16's memory, and are "
        "read faster. On a CPU, with native kernels.",
        choices=("auto", "fp8", "int8"),
    )
    state_cache_share: float = option(
        0.5,
        "For models whose layers keep a state per sequence, such as state-space models: the share of the KV cache's "
        "memory that states and their snapshots take; blocks take the rest. What one side cannot use, the other takes.",
        minimum=0.01,
        maximum=0.99,
    )
    block_size: int = option(16, "Tokens per KV block.", minimum=1, maximum=1024)
    enable_prefix_caching: bool = option(True, "Reuse KV blocks of equal prompt prefixes.")
    encoder_cache_tokens: int | None = option(
        None,
        "Tokens of pictures whose embeddings are kept for the prompts that need them, and for later ones. At least the "
        "largest picture's. Default: the larger of that and --max-num-batched-tokens.",
        minimum=1,
    )
    media_memory_bytes: int = option(
        256 * 2**20,
        "Memory for the pixels of pictures that processors send, of an engine whose model sees: those of requests "
        "under way, and as many of others as have room.",
        minimum=16 * 2**20,
        maximum=2**50,
        unit="bytes",
    )


@dataclass(frozen=True, slots=True)
class SchedulerConfig(_Section):
    """Batching and admission."""

    max_num_batched_tokens: int = option(
        2048, "Most tokens computed in one step, over all sequences.", minimum=1, maximum=2**20
    )
    max_num_seqs: int = option(256, "Most sequences computed in one step.", minimum=1, maximum=2**16)
    max_num_queued_reqs: int = option(
        4096,
        "Most requests that wait; more are refused with RESOURCE_EXHAUSTED. With --policy priority, one "
        "tenant may take half of what the other tenants leave.",
        minimum=1,
        maximum=2**20,
    )
    policy: str = option(
        "priority",
        "Order of waiting requests: priority (lowest number first, then fairly across tenants, then by "
        "arrival) or fcfs (by arrival).",
        choices=("priority", "fcfs"),
    )
    enable_chunked_prefill: bool = option(True, "Compute long prompts in several steps.")
    async_scheduling: bool | None = option(
        None,
        "Schedule the next step while one is computed. Tokens stay the same. Default: on, except on a CPU, "
        "where both would share the cores, and with several ranks, which do without it.",
    )
    num_speculative_tokens: int = option(
        8,
        "Most draft tokens per sequence and step: tokens that a grammar forces are computed together, and take no "
        "steps of their own. Tokens stay the same. 0: none. Those of --speculative-config have their own limit, there.",
        minimum=0,
        maximum=64,
    )

    speculative_config: str | None = option(
        None,
        "JSON object that says how drafts are made besides those that grammars force: method (ngram, draft_model, mtp "
        "or eagle3), model (the drafting checkpoint), num_speculative_tokens, prompt_lookup_min and prompt_lookup_max, "
        'such as {"method": "ngram"}. Tokens stay the same; docs/explanation/speculation.md says what pays. '
        "Default: none.",
    )

    def __post_init__(self) -> None:
        _Section.__post_init__(self)
        read_speculative_config(self.speculative_config, self._rows_for_drafts)

    @property
    def speculation(self) -> SpeculativeConfig | None:
        """``speculative_config``, read."""
        return read_speculative_config(self.speculative_config, self._rows_for_drafts)

    @property
    def _rows_for_drafts(self) -> int:
        """Rows of a step besides that of a sequence."""
        return min(self.max_num_seqs, self.max_num_batched_tokens) - 1

    def require_step_for(self, max_model_len: int) -> None:
        """Raise ``ConfigError`` if prompts are computed whole, and may have more tokens than a step."""
        if not self.enable_chunked_prefill and self.max_num_batched_tokens < max_model_len:
            accepted = f"at least --max-model-len ({max_model_len}) with --no-enable-chunked-prefill"
            raise ConfigError("max_num_batched_tokens", self.max_num_batched_tokens, accepted)


@dataclass(frozen=True, slots=True)
class LoadConfig(_Section):
    """How weights are loaded."""

    load_format: str = option(
        "auto",
        "auto reads safetensors or, where there are none, PyTorch's pytorch_model.bin; safetensors and pt read only "
        "those; dummy makes random weights of the checkpoint's shapes, for measurements.",
        choices=("auto", "safetensors", "pt", "dummy"),
    )


_MOST_LORAS = 8


@dataclass(frozen=True, slots=True)
class LoRAConfig(_Section):
    """Adapters, which requests ask for by name."""

    enable_lora: bool = option(
        False, "Serve LoRA adapters, in PEFT's format: each request may name one, and a batch may have many."
    )
    max_loras: int | None = option(
        None,
        "Most adapters of requests that are computed or wait for a step at a time; requests of others wait. Default: "
        "8, or --max-cpu-loras if that is less.",
        minimum=1,
        maximum=2**12,
    )
    max_lora_rank: int = option(16, "Largest rank of an adapter; others are refused.", minimum=1, maximum=512)
    max_cpu_loras: int | None = option(
        None,
        "Most adapters that stay loaded; the least recently used ones make room. Memory is set aside for so many of "
        "--max-lora-rank. Default: --max-loras.",
        minimum=1,
        maximum=2**16,
    )

    def __post_init__(self) -> None:
        _Section.__post_init__(self)
        if self.max_cpu_loras is not None and self.max_loras is not None and self.max_cpu_loras < self.max_loras:
            raise ConfigError("max_cpu_loras", self.max_cpu_loras, f"at least max_loras={self.max_loras}")

    @property
    def most_active(self) -> int:
        """``max_loras``, or its default."""
        return self.max_loras or min(_MOST_LORAS, self.max_cpu_loras or _MOST_LORAS)

    @property
    def most_loaded(self) -> int:
        """``max_cpu_loras``, or its default."""
        return self.max_cpu_loras or self.most_active


@dataclass(frozen=True, slots=True)
class DeviceConfig(_Section):
    """What the model runs on."""

    device: str = option(
        "auto",
        "Device that computes the model; auto takes an NVIDIA GPU if torch sees one, else the CPU.",
        choices=("auto", "cpu", "cuda"),
    )
    num_threads: int | None = option(
        None,
        "Threads of the forward pass on a CPU, of each rank; default: all cores, divided among the ranks of a host.",
        minimum=1,
        maximum=1024,
    )
    attention_backend: str | None = option(
        None,
        "Implementation of attention. On a GPU: triton (Ringline's own kernels, the default), varlen "
        "(varlen_attn of torch 2.12 or later; needs a --block-size that is a multiple of 256) or flashinfer "
        "(if it is installed). On a CPU: native or torch; default: the faster one that supports the model.",
        choices=("triton", "varlen", "flashinfer", "native", "torch"),
    )
    kernel_cache_dir: str | None = option(
        None,
        "On a CPU: directory for the native kernels that the engine compiles, used if their package's own "
        "directory cannot be read or written. It must belong to this user. Default: ringline in "
        "$XDG_CACHE_HOME, or in ~/.cache.",
    )
    enforce_eager: bool = option(
        False, "On a GPU: launch each kernel in every step instead of replaying captured CUDA graphs."
    )
    deterministic: bool = option(
        False,
        "On a GPU: use kernels whose results do not depend on the batch, so that equal requests get equal "
        "tokens whatever else is computed; slower. On a CPU the native kernels always do so.",
    )


@dataclass(frozen=True, slots=True)
class ParallelConfig(_Section):
    """The ranks that compute a model together: processes with a part of it each."""

    tensor_parallel_size: int = option(
        1,
        "Ranks that share each layer; every one keeps and computes its part of the layer's outputs. The number of "
        "query heads must be a multiple. Tokens stay the same, bit for bit on a CPU.",
        minimum=1,
        maximum=64,
    )
    pipeline_parallel_size: int = option(
        1,
        "Stages of consecutive layers, each on ranks of its own; as many steps are computed at a time.",
        minimum=1,
        maximum=64,
    )
    data_parallel_size: int = option(
        1,
        "Engines on this machine, or Ray cluster, with a copy of the model each, all of its ranks included; `ringline "
        "serve` starts as many. They divide its cores and memory, and on GPUs each has its own.",
        minimum=1,
        maximum=10,
    )
    data_parallel_rank: int = option(0, "Which of these engines this one is, from 0 on.", minimum=0, maximum=9)
    distributed_executor_backend: str | None = option(
        None,
        "Where ranks run: uni (in the engine's process, one rank only), mp (a process for each, on this host) or ray "
        "(an actor for each, on the hosts of a Ray cluster). Default: uni for one rank, mp for more.",
        choices=("uni", "mp", "ray"),
    )
    enable_expert_parallel: bool = option(
        False, "Give each rank of a layer whole experts, instead of a part of every expert."
    )
    worker_start_timeout: float = option(
        600.0,
        "Seconds that ranks have for each stage of the start; an engine of one process ends if its start makes no "
        "progress for so long.",
        minimum=1.0,
        maximum=86400.0,
    )
    ray_address: str | None = option(
        None, "Address of the Ray cluster, such as 10.0.0.1:6379; default: what RAY_ADDRESS names, or this host's."
    )
    ray_namespace: str = option("ringline", "Namespace of the engine's actors in the Ray cluster.")

    @property
    def world_size(self) -> int:
        """Number of all ranks."""
        return self.tensor_parallel_size * self.pipeline_parallel_size

    @property
    def backend(self) -> str:
        """Where ranks run: the option, or its default."""
        return self.distributed_executor_backend or ("uni" if self.world_size == 1 else "mp")


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """All options of an engine."""

    model: ModelConfig = field(default_factory=ModelConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    load: LoadConfig = field(default_factory=LoadConfig)
    lora: LoRAConfig = field(default_factory=LoRAConfig)
    device: DeviceConfig = field(default_factory=DeviceConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)

    def __post_init__(self) -> None:
        """Raise ``ConfigError`` where options of two sections exclude each other."""
        speculation = self.scheduler.speculation
        if speculation is None:
            return
        reads_hidden = speculation.reads_final_states or speculation.taps_layers
        if reads_hidden and self.device.attention_backend == "flashinfer":
            accepted = (
                f"triton with the method {speculation.method} of --speculative-config: flashinfer plans steps for the "
                "model's heads, and what drafts may have others"
            )
            raise ConfigError("attention_backend", "flashinfer", accepted)
        if speculation.taps_layers and self.parallel.pipeline_parallel_size > 1:
            accepted = (
                "another method than eagle3 with --pipeline-parallel-size: a head reads early and late layers, which "
                "no stage has together"
            )
            raise ConfigError("speculative_config", self.scheduler.speculative_config, accepted)


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A checkpoint's properties, resolved against the options, as scheduling and serving need them."""

    name: str
    architecture: str
    """The class name in the checkpoint's config, such as ``Qwen3ForCausalLM``."""
    vocab_size: int
    max_model_len: int
    eos_token_ids: tuple[int, ...]
    dtype: str
    default_sampling: dict[str, float] = field(default_factory=dict)
    """From generation_config.json, where present: temperature, top_k, top_p, min_p, repetition_penalty."""
    num_parameters: int = 0
    """Numbers that the weights consist of; 0 until they are loaded."""
    vision: VisionShape | None = None
    """None: the model takes no pictures."""
    picture_token_cost: float = 1.0
    """Tokens of text that a step computes in the time in which it encodes a token of a picture, as measured."""
    pooling: PoolingFacts | None = None
    """What it computes in place of tokens; None: it generates."""


def for_model(config: EngineConfig, model: ModelSpec) -> EngineConfig:
    """``config`` as ``model`` takes it. Raises ``ConfigError`` for options that do not go with it.

    What pools has no drafts; where all tokens see each other, an input is computed in one step, and shares nothing.
    """
    scheduler, cache = config.scheduler, config.cache
    if (pooling := model.pooling) is None:
        return config
    if scheduler.speculative_config is not None:
        accepted = "no value for a model that pools: it generates no tokens that could be drafted"
        raise ConfigError("speculative_config", scheduler.speculative_config, accepted)
    if not pooling.attends_both_ways:
        return config
    if scheduler.max_num_batched_tokens < model.max_model_len:
        accepted = (
            f"at least --max-model-len ({model.max_model_len}), as the tokens of an input see each other, so that one "
            "step computes all of them"
        )
        raise ConfigError("max_num_batched_tokens", scheduler.max_num_batched_tokens, accepted)
    return replace(
        config,
        scheduler=replace(scheduler, enable_chunked_prefill=False),
        cache=replace(cache, enable_prefix_caching=False),
    )


def encoder_portion_tokens(scheduler: SchedulerConfig, cost: float) -> int:
    """Tokens of pictures that a step encodes while others wait for it: they take a quarter of a full step's time.

    ``cost``: ``picture_token_cost``.
    """
    return max(1, int(scheduler.max_num_batched_tokens / max(1.0, 4 * cost)))


def encoder_step_tokens(scheduler: SchedulerConfig, vision: VisionShape) -> int:
    """Tokens of the pictures that one step may encode: the largest always fits."""
    return max(scheduler.max_num_batched_tokens, vision.max_tokens)


def require_step_for_pictures(scheduler: SchedulerConfig, vision: VisionShape) -> None:
    """Raise ``ConfigError`` if a picture must be computed in one step, and the largest would never fit into one."""
    if vision.attends_both_ways and scheduler.max_num_batched_tokens < vision.max_tokens:
        accepted = f"at least {vision.max_tokens}, the tokens of this model's largest picture, which one step computes"
        raise ConfigError("max_num_batched_tokens", scheduler.max_num_batched_tokens, accepted)


def encoder_cache_tokens(cache: CacheConfig, scheduler: SchedulerConfig, vision: VisionShape) -> int:
    """Tokens of pictures whose embeddings are kept. Raises ``ConfigError``."""
    asked = cache.encoder_cache_tokens
    if asked is None:
        return encoder_step_tokens(scheduler, vision)
    least, what = vision.max_tokens, "which the largest picture takes"
    if not scheduler.enable_chunked_prefill and scheduler.max_num_batched_tokens > least:
        least, what = scheduler.max_num_batched_tokens, "as --no-enable-chunked-prefill computes prompts whole"
    if asked < least:
        raise ConfigError("encoder_cache_tokens", asked, f"at least {least}, {what}")
    return asked


@dataclass(frozen=True, slots=True)
class RequestMemory:
    """Host memory reserved for requests, besides the KV cache; the service stays within it."""

    logprob_bytes: int
    """For log probabilities."""
    id_bytes: int
    """For token ids."""
