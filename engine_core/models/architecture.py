"""What a decoder-only transformer looks like: its sizes, its switches, and the tensors its checkpoint has."""

from __future__ import annotations

from dataclasses import dataclass

from transformers import PretrainedConfig

from engine_core.errors import CheckpointError, UnsupportedModelError
from engine_core.layers.rotary import RopeParameters


@dataclass(frozen=True, slots=True)
class ArchitectureConfig:
    """Everything about a model but its weights, its type and its name."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope: RopeParameters
    max_position_embeddings: int
    tie_word_embeddings: bool
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    qk_norm: bool
    """Queries and keys are normalized per head before rotation."""
    sliding_window: int | None
    """Tokens, this one included, that a token sees, where some layer limits them."""

    @property
    def widths(self) -> tuple[int, ...]:
        """Sizes of the rows that layers compute."""
        return self.hidden_size, self.intermediate_size


def read_shape(
    config: PretrainedConfig,
    *,
    qkv_bias: bool = False,
    o_bias: bool = False,
    mlp_bias: bool = False,
    qk_norm: bool = False,
    sliding_window: int | None = None,
) -> ArchitectureConfig:
    """Read what all families name alike; what a family decides for itself comes as keywords.

    Raises ``CheckpointError`` for sizes that cannot be, ``UnsupportedModelError`` for an activation or a rope type
    that the engine does not have.
    """
    if config.hidden_act != "silu":
        raise UnsupportedModelError(f"hidden_act {config.hidden_act!r} is not supported; known is silu")
    hidden_size, num_heads = _positive(config, "hidden_size"), _positive(config, "num_attention_heads")
    num_kv_heads = _positive(config, "num_key_value_heads")
    if num_heads % num_kv_heads:
        raise CheckpointError(
            f"num_attention_heads={num_heads} is not a multiple of num_key_value_heads={num_kv_heads}"
        )
    head_dim = getattr(config, "head_dim", None) or hidden_size // num_heads
    if head_dim < 2 or head_dim % 2:
        raise CheckpointError(f"head_dim={head_dim} is not an even number")
    max_position_embeddings = _positive(config, "max_position_embeddings")
    return ArchitectureConfig(
        vocab_size=_positive(config, "vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=_positive(config, "intermediate_size"),
        num_layers=_positive(config, "num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        rms_norm_eps=float(config.rms_norm_eps),
        rope=RopeParameters.read(config.rope_parameters or {}, max_position_embeddings),
        max_position_embeddings=max_position_embeddings,
        tie_word_embeddings=bool(config.tie_word_embeddings),
        qkv_bias=qkv_bias,
        o_bias=o_bias,
        mlp_bias=mlp_bias,
        qk_norm=qk_norm,
        sliding_window=sliding_window,
    )


def tensor_shapes(shape: ArchitectureConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor of a checkpoint, as the Hugging Face classes of these families save them."""
    tensors: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (shape.vocab_size, shape.hidden_size)}
    for index in range(shape.num_layers):
        tensors |= {f"model.layers.{index}.{name}": size for name, size in _layer_tensor_shapes(shape).items()}
    tensors["model.norm.weight"] = (shape.hidden_size,)
    if not shape.tie_word_embeddings:
        tensors["lm_head.weight"] = (shape.vocab_size, shape.hidden_size)
    return tensors


def is_redundant(name: str, shape: ArchitectureConfig) -> bool:
    """Whether a tensor may be there without being used: it only repeats what the configuration or another tensor says.

    These are rotary frequencies, which older releases saved, and the output projection where embeddings are tied.
    """
    return name.endswith(".rotary_emb.inv_freq") or (shape.tie_word_embeddings and name == "lm_head.weight")


def _layer_tensor_shapes(shape: ArchitectureConfig) -> dict[str, tuple[int, ...]]:
    hidden, inner = shape.hidden_size, shape.intermediate_size
    q_size, kv_size = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    tensors: dict[str, tuple[int, ...]] = {"input_layernorm.weight": (hidden,)}
    linears = (
        ("self_attn.q_proj", q_size, hidden, shape.qkv_bias),
        ("self_attn.k_proj", kv_size, hidden, shape.qkv_bias),
        ("self_attn.v_proj", kv_size, hidden, shape.qkv_bias),
        ("self_attn.o_proj", hidden, q_size, shape.o_bias),
        ("mlp.gate_proj", inner, hidden, shape.mlp_bias),
        ("mlp.up_proj", inner, hidden, shape.mlp_bias),
        ("mlp.down_proj", hidden, inner, shape.mlp_bias),
    )
    for name, rows, columns, bias in linears:
        tensors[f"{name}.weight"] = (rows, columns)
        if bias:
            tensors[f"{name}.bias"] = (rows,)
    if shape.qk_norm:
        tensors["self_attn.q_norm.weight"] = tensors["self_attn.k_norm.weight"] = (shape.head_dim,)
    tensors["post_attention_layernorm.weight"] = (hidden,)
    return tensors


def _positive(config: PretrainedConfig, name: str) -> int:
    value = getattr(config, name)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise CheckpointError(f"{name}={value!r} is not usable: expected a positive whole number")
    return value
