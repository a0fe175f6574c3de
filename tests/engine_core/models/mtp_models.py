"""Tiny random checkpoints that carry a layer for multi-token prediction, and transformers' own computation of it."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.cache_utils import MtpCache
from transformers.modeling_layers import MtpModel

from tests.engine_core.models.families import configuration
from tests.engine_core.models.tiny_models import EAGER, compute_token_by_token, make_model, save_model

NAMES = (
    "deepseek_v3",
    "deepseek_v3-halves-tied",
    "glm4_moe",
    "glm4_moe-groups-norms",
    "glm4_moe_lite",
    "qwen3_5_text",
    "qwen3_5_text-one-key-head-biases-tied-padded",
    "qwen3_5_moe_text",
    "qwen3_next",
)
"""Configurations of ``families`` that are tried with such a layer."""


def save_with_mtp(name: str, directory: Path, seed: int = 0) -> Path:
    """A checkpoint of the configuration ``name`` as its publisher would save it.

    Its layer for multi-token prediction is made as one more decoder layer, which transformers saves in the family's
    form.
    """
    config = _with_layer(configuration(name))
    save_model(make_model(config, seed), directory)
    file = directory / "model.safetensors"
    tensors, last, hidden = load_file(file), config.num_hidden_layers - 1, config.hidden_size
    names = _Names(config, last)
    tensors = {names.of_block(key): tensor for key, tensor in tensors.items()}
    generator = torch.Generator().manual_seed(seed)
    offset = 1.0 if names.is_by_itself else 0.0  # those families add 1 to the weights of norms
    for norm in (names.embedding_norm, names.hidden_norm, names.norm):
        tensors[norm] = 1 - offset + 0.2 * torch.randn(hidden, generator=generator)
    tensors[names.projection] = 0.2 * torch.randn(hidden, 2 * hidden, generator=generator)
    save_file(tensors, file, metadata={"format": "pt"})
    fields = json.loads((directory / "config.json").read_text())
    fields["num_hidden_layers"] = last
    for listed in ("layer_types", "mlp_layer_types"):
        if fields.get(listed):
            fields[listed] = fields[listed][:last]
    (directory / "config.json").write_text(json.dumps(fields))
    return directory


def _with_layer(config: PretrainedConfig) -> PretrainedConfig:
    """``config`` with a further layer, which attends, and has experts if the family has any."""
    fields = copy.deepcopy(config.to_dict())
    fields["num_hidden_layers"] += 1
    if fields.get("layer_types"):  # the last one attends, as in published models
        fields["layer_types"].sort(reverse=True)
        fields["layer_types"] = [*fields["layer_types"], "full_attention"]
    if fields.get("mlp_layer_types"):
        fields["mlp_layer_types"] = [*fields["mlp_layer_types"], "sparse"]
    return type(config).from_dict(fields)


class _Names:
    """The layer's names in a published checkpoint."""

    def __init__(self, config: PretrainedConfig, index: int) -> None:
        self.is_by_itself = config.model_type.startswith("qwen")
        self._stored = f"model.layers.{index}."
        prefix = "mtp." if self.is_by_itself else self._stored
        own = {"enorm": "pre_fc_norm_embedding", "hnorm": "pre_fc_norm_hidden", "eh_proj": "fc"}
        own |= {"shared_head.norm": "norm"}
        short = own if self.is_by_itself else {each: each for each in own}
        self.embedding_norm, self.hidden_norm, self.projection, self.norm = (
            f"{prefix}{each}.weight" for each in short.values()
        )

    def of_block(self, name: str) -> str:
        return name.replace(self._stored, "mtp.layers.0.") if self.is_by_itself else name


class Reference:
    """Transformers' model and layer of a checkpoint from ``save_with_mtp``."""

    def __init__(self, directory: Path) -> None:
        self.model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(directory, dtype="float32", **EAGER).eval()
        compute_token_by_token(self.model)
        config: Any = self.model.config
        if config.model_type.startswith("qwen"):  # which transformers knows only from newer configurations
            config.num_mtp_layers, config.mtp_layer_types = 1, ["full_attention"]
        elif getattr(config, "mlp_layer_types", None):
            config.num_mtp_layers, config.mtp_mlp_layer_types = 1, ["sparse"]
        else:  # it knows the layer only by the numbers of layers of published models
            config.num_mtp_layers = 1
        if not config.model_type.startswith("qwen"):
            self.model._keys_to_ignore_on_load_unexpected = [rf"model\.layers\.{config.num_hidden_layers}\..*"]
        self.mtp: MtpModel = MtpModel.from_pretrained(self.model).eval()

    @torch.inference_mode()
    def hidden(self, ids: torch.Tensor) -> torch.Tensor:
        """The model's final hidden states [T, H] of ``ids`` [T]."""
        return self.model.model(ids[None]).last_hidden_state[0]  # type: ignore[no-any-return]

    @torch.inference_mode()
    def drafts(self, ids: torch.Tensor, count: int, start: int = 1) -> tuple[list[int], torch.Tensor]:
        """The ``count`` most likely tokens after ``ids`` [T], one after the other, and their logits [count, V].

        The layer sees the tokens from ``start`` on.
        """
        cache = MtpCache(config=self.model.config.get_mtp_config())
        known, previous, first = ids, self.hidden(ids)[start - 1 : -1], start
        drafts, logits = list[int](), list[torch.Tensor]()
        for _ in range(count):
            places = torch.arange(first, len(known))[None]
            hidden = self.mtp.forward_layer(0, previous[None], places, cache, input_ids=known[None, first:])
            logits.append(self.mtp._project_to_logits(hidden[:, -1])[0])
            drafts.append(int(logits[-1].argmax()))
            first, previous = len(known), hidden[0, -1:]
            known = torch.cat([known, torch.tensor(drafts[-1:])])
        return drafts, torch.stack(logits)
