"""Random EAGLE-3 heads as their publishers save them, and what such a head computes: written from the paper's
description with transformers' parts of Llama, without a cache, and for one sequence at a time.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn
from transformers import LlamaConfig, PreTrainedModel
from transformers.models.llama.modeling_llama import (
    LlamaMLP,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
    apply_rotary_pos_emb,
    repeat_kv,
)


class ReferenceLayer(nn.Module):
    """Attention over a token's embedding and a feature, each normalized, then a feed-forward block."""

    def __init__(self, config: LlamaConfig, norm_before_residual: bool) -> None:
        super().__init__()
        hidden, width = config.hidden_size, config.head_dim
        queries, keys = config.num_attention_heads * width, config.num_key_value_heads * width
        self.self_attn = nn.ModuleDict(
            {
                "q_proj": nn.Linear(2 * hidden, queries, bias=config.attention_bias),
                "k_proj": nn.Linear(2 * hidden, keys, bias=config.attention_bias),
                "v_proj": nn.Linear(2 * hidden, keys, bias=config.attention_bias),
                "o_proj": nn.Linear(queries, hidden, bias=config.attention_bias),
            }
        )
        self.mlp = LlamaMLP(config)
        self.input_layernorm = LlamaRMSNorm(hidden, config.rms_norm_eps)
        self.hidden_norm = LlamaRMSNorm(hidden, config.rms_norm_eps)
        self.post_attention_layernorm = LlamaRMSNorm(hidden, config.rms_norm_eps)
        self._config = config
        self._norm_before_residual = norm_before_residual

    def forward(self, embeds: torch.Tensor, features: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor):
        normed = self.hidden_norm(features)
        residual = normed if self._norm_before_residual else features
        hidden = residual + self._attend(torch.cat([self.input_layernorm(embeds), normed], -1), cos, sin)
        return hidden + self.mlp(self.post_attention_layernorm(hidden))

    def _attend(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        config, length = self._config, x.shape[1]
        query, key, value = (
            self.self_attn[name](x).view(1, length, -1, config.head_dim).transpose(1, 2)
            for name in ("q_proj", "k_proj", "v_proj")
        )
        query, key = apply_rotary_pos_emb(query, key, cos, sin)
        groups = config.num_attention_heads // config.num_key_value_heads
        key, value = repeat_kv(key, groups), repeat_kv(value, groups)
        scores = query @ key.transpose(2, 3) * config.head_dim**-0.5
        scores = scores.masked_fill(torch.ones(length, length).triu(1).bool(), -torch.inf)
        attended = scores.softmax(-1) @ value
        return self.self_attn["o_proj"](attended.transpose(1, 2).flatten(2))


class ReferenceHead(nn.Module):
    """A head for a target whose ``taps`` are the layers that it reads."""

    def __init__(
        self,
        config: LlamaConfig,
        draft_vocab_size: int | None,
        target_hidden_size: int,
        taps: Sequence[int],
        *,
        norm_before_residual: bool = False,
    ) -> None:
        """``draft_vocab_size``: None: the head can draft all tokens."""
        super().__init__()
        hidden = config.hidden_size
        self.config, self.taps = config, tuple(taps)
        self.fc = nn.Linear(len(taps) * target_hidden_size, hidden, bias=False)
        self.midlayer = ReferenceLayer(config, norm_before_residual)
        self.norm = LlamaRMSNorm(hidden, config.rms_norm_eps)
        self.lm_head = nn.Linear(hidden, draft_vocab_size or config.vocab_size, bias=False)
        self.embed_tokens = nn.Embedding(config.vocab_size, hidden)
        self.rotary = LlamaRotaryEmbedding(config)
        self.token_ids = torch.arange(config.vocab_size)
        """The target's ids of those that the head can draft."""
        if draft_vocab_size is not None:
            generator = torch.Generator().manual_seed(7)
            self.token_ids = torch.randperm(config.vocab_size, generator=generator)[:draft_vocab_size].sort().values

    @torch.no_grad()
    def drafts(self, tapped: torch.Tensor, token_ids: Sequence[int], start: int, count: int) -> list[int]:
        """The ``count`` likeliest tokens behind ``token_ids``, one after the other; ``tapped`` [n, …] are the target's
        hidden states before its last token. The head sees what begins at the position ``start``.
        """
        features, tokens = self.fc(tapped[start:])[None], list(token_ids)
        for _ in range(count):
            positions = torch.arange(start, len(tokens) - 1)[None]
            embeds = self.embed_tokens(torch.tensor(tokens[start + 1 :]))[None]
            output = self.midlayer(embeds, features, *self.rotary(embeds, positions))[0, -1]
            tokens.append(int(self.token_ids[self.lm_head(self.norm(output)).argmax()]))
            features = torch.cat([features, output[None, None]], 1)
        return tokens[len(token_ids) :]

    def save(self, directory: Path, form: str = "authors", **fields: Any) -> Path:
        """As the paper's authors publish heads (``authors``, or ``pickled``), or the library speculators; ``fields``
        replace those in config.json.
        """
        directory.mkdir(parents=True, exist_ok=True)
        tensors = {name: tensor.contiguous() for name, tensor in self.state_dict().items()}
        if len(self.token_ids) < self.config.vocab_size:
            tensors["d2t"] = self.token_ids - torch.arange(len(self.token_ids))
            tensors["t2d"] = torch.zeros(self.config.vocab_size, dtype=torch.bool).index_fill(0, self.token_ids, True)
        config = self.config.to_dict() | {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 1}
        own: dict[str, Any] = {"draft_vocab_size": len(self.token_ids)}
        if self.midlayer._norm_before_residual:
            own["norm_before_residual"] = True
        if form == "speculators":
            tensors = {name.replace("midlayer.", "layers.0."): each for name, each in tensors.items()}
            config = {"architectures": ["Eagle3Speculator"], "transformer_layer_config": config}
        (directory / "config.json").write_text(json.dumps(config | own | fields))
        if form == "pickled":
            torch.save(tensors, directory / "pytorch_model.bin")
        else:
            save_file(tensors, directory / "model.safetensors")
        return directory


def make_head(
    target: PreTrainedModel,
    *,
    draft_vocab_size: int | None = 64,
    taps: Sequence[int] | None = None,
    norm_before_residual: bool = False,
    seed: int = 0,
    **sizes: Any,
) -> ReferenceHead:
    """A random head for ``target``, with its embedding, and its sizes but for ``sizes``."""
    of_target, layers = target.config, target.config.num_hidden_layers
    names = ("vocab_size", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads")
    config = LlamaConfig(
        **({name: getattr(of_target, name) for name in (*names, "max_position_embeddings", "head_dim")} | sizes),
        num_hidden_layers=1,
    )
    torch.manual_seed(seed)
    read = (2, layers // 2, layers - 3) if taps is None else taps
    head = ReferenceHead(
        config, draft_vocab_size, of_target.hidden_size, read, norm_before_residual=norm_before_residual
    )
    for name, parameter in head.named_parameters():
        nn.init.normal_(parameter, 1.0 if "norm" in name else 0.0, 0.2)
    if config.hidden_size == of_target.hidden_size:
        head.embed_tokens.weight.data.copy_(target.get_input_embeddings().weight)
    return head.eval()


def make_exact_head(target: PreTrainedModel) -> ReferenceHead:
    """Let the layers of ``target``, a Llama, add nothing, so that a token follows from the one before it alone; returns
    a head that drafts exactly these, as its attention sees nothing but its own row's embedding.
    """
    with torch.no_grad():
        for layer in target.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        hidden, width = target.config.hidden_size, target.config.head_dim
        heads = hidden // width
        head = make_head(
            target,
            draft_vocab_size=None,
            norm_before_residual=True,
            num_attention_heads=heads,
            num_key_value_heads=heads,
            attention_bias=True,
        )
        for parameter in [*head.fc.parameters(), *head.midlayer.parameters()]:
            parameter.zero_()
        of_layer = head.midlayer
        of_layer.input_layernorm.weight.fill_(1.0)
        for name in ("q_proj", "k_proj"):  # the first pair turns by one radian a position: far rows see little
            of_layer.self_attn[name].bias.view(heads, width)[:, 0] = 2000.0
        of_layer.self_attn["v_proj"].weight[:, :hidden] = torch.eye(hidden)
        of_layer.self_attn["o_proj"].weight.copy_(torch.eye(hidden))
        head.norm.weight.copy_(target.model.norm.weight)
        head.lm_head.weight.copy_(target.lm_head.weight)
    return head


@torch.no_grad()
def tapped(target: PreTrainedModel, token_ids: Sequence[int], taps: Sequence[int]) -> torch.Tensor:
    """[n, taps · H]: inputs of the layers ``taps`` of ``target``, side by side."""
    states = target(torch.tensor([list(token_ids)]), output_hidden_states=True).hidden_states
    return torch.cat([states[layer][0] for layer in taps], -1)
