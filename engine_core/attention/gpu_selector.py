"""Which attention backend computes a model on an NVIDIA GPU: our own kernels, or a library on request."""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass

import torch

from engine_core.attention.base import AttentionBackend
from engine_core.attention.flash_attention import PAGE, FlashAttention, varlen_function
from engine_core.attention.flashinfer import HEADS, FlashInferAttention, HeadsOfModel
from engine_core.attention.triton import LARGEST_HEAD, SMALLEST_HEAD, TritonAttention
from engine_core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Demand:
    """What the attention backend must support."""

    heads: HeadsOfModel
    block_size: int
    max_model_len: int
    deterministic: bool
    """Whether a row's result must not depend on the rest of its batch."""
    plain: bool = True
    """See ``ArchitectureConfig.is_plainly_attending``."""


def check_attention(asked: str | None, demand: Demand) -> None:
    """Raise ``ConfigError`` if the backend ``asked`` for cannot meet ``demand``, or is not installed."""

    def refuse(why: str) -> ConfigError:
        return ConfigError("attention_backend", asked, f"triton, because {why}")

    if asked in (None, "triton"):
        if not SMALLEST_HEAD <= demand.heads.head_dim <= LARGEST_HEAD:
            needed = f"head_dim from {SMALLEST_HEAD} to {LARGEST_HEAD}; the model's is {demand.heads.head_dim}"
            raise ConfigError("device", "cuda", f"cpu, because kernels for GPUs need a {needed}")
        return
    if asked in ("native", "torch"):
        raise refuse(f"{asked} runs only on CPUs")
    if demand.deterministic:
        raise refuse(f"--deterministic needs results that do not depend on the batch, which {asked} does not promise")
    if not demand.plain:
        raise refuse(
            f"{asked} is not used with windows, chunks, sinks, capped scores, pictures whose tokens all see each other "
            "(--language-model-only), or a scale other than 1 / √head_dim"
        )
    if demand.heads.dtype == torch.float32:
        raise refuse(f"{asked} computes bfloat16 and float16, not float32")
    if asked == "varlen":
        if varlen_function() is None:
            raise refuse(f"varlen needs torch 2.12 or later; this is {torch.__version__}")
        if demand.block_size % PAGE:
            needed = f"a multiple of {PAGE} with --attention-backend varlen"
            raise ConfigError("block_size", demand.block_size, needed)
    else:
        if importlib.util.find_spec("flashinfer") is None:
            raise refuse("flashinfer is not installed")
        if demand.heads.head_dim not in HEADS:
            sizes = ", ".join(map(str, HEADS))
            raise refuse(f"flashinfer needs head_dim to be one of {sizes}; the model's is {demand.heads.head_dim}")


def choose_gpu_attention(
    asked: str | None, demand: Demand, processors: int, device: torch.device
) -> tuple[AttentionBackend, str]:
    """The backend, which ``check_attention`` has accepted, and its description for a person.

    ``processors``: multiprocessors of the device.
    """
    if asked == "varlen":
        return FlashAttention(varlen_function()), f"attention by varlen_attn of torch {torch.__version__}"
    if asked == "flashinfer":
        library = importlib.import_module("flashinfer")
        pages = -(-demand.max_model_len // demand.block_size)
        backend = FlashInferAttention(library, demand.heads, demand.block_size, pages, device)
        return backend, f"attention by flashinfer {library.__version__}"
    own = TritonAttention(demand.max_model_len, processors, uniform=demand.deterministic)
    return own, "attention by own triton kernels"
