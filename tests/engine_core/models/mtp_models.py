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


def save_with_mtp(name: str, directory: Path) -> Path:
    """A checkpoint of the configuration ``name`` as its publisher would save it."""
    save_model(make_model(with_layer(configuration(name))), directory)
    return move_layer(directory)


def with_layer(config: PretrainedConfig) -> PretrainedConfig:
    """``config`` with a further layer, which attends, and has experts if the family has any."""
    fields = copy.deepcopy(config.to_dict())
    fields["num_hidden_layers"] += 1
    if fields.get("layer_types"):  # the last one attends, as in published models
        fields["layer_types"] = [*sorted(fields["layer_types"], reverse=True), "full_attention"]
    if fields.get("mlp_layer_types"):
        fields["mlp_layer_types"] = [*fields["mlp_layer_types"], "sparse"]
    return type(config).from_dict(fields)


def move_layer(directory: Path) -> Path:
    """Make the last layer of a checkpoint, which transformers saved in the family's form, the one that predicts further
    tokens.
    """
    file, about = directory / "model.safetensors", directory / "config.json"
    fields, tensors = json.loads(about.read_text()), load_file(file)
    last, hidden = fields["num_hidden_layers"] - 1, fields["hidden_size"]
    names = _Names(fields["model_type"], last)
    tensors = {names.of_block(key): tensor for key, tensor in tensors.items()}
    generator, dtype = torch.Generator().manual_seed(0), tensors["model.norm.weight"].dtype
    offset = 1.0 if names.is_by_itself else 0.0  # these families add 1 to the weights of norms
    for norm in (names.embedding_norm, names.hidden_norm, names.norm):
        tensors[norm] = (1 - offset + 0.2 * torch.randn(hidden, generator=generator)).to(dtype)
    tensors[names.projection] = (0.2 * torch.randn(hidden, 2 * hidden, generator=generator)).to(dtype)
    save_file(tensors, file, metadata={"format": "pt"})
    listed = {name: fields[name][:last] for name in ("layer_types", "mlp_layer_types") if fields.get(name)}
    about.write_text(json.dumps(fields | listed | {"num_hidden_layers": last}))
    return directory


class _Names:
    """The layer's names in a published checkpoint."""

    def __init__(self, model_type: str, index: int) -> None:
        self.is_by_itself = model_type.startswith("qwen")
        self._stored = f"model.layers.{index}."
        prefix = "mtp." if self.is_by_itself else self._stored
        by_itself = "pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm", "fc"
        behind_layers = "enorm", "hnorm", "shared_head.norm", "eh_proj"
        own = by_itself if self.is_by_itself else behind_layers
        self.embedding_norm, self.hidden_norm, self.norm, self.projection = (f"{prefix}{each}.weight" for each in own)

    def of_block(self, name: str) -> str:
        return name.replace(self._stored, "mtp.layers.0.") if self.is_by_itself else name


def save_truthful(directory: Path) -> Path:
    """A DeepSeek V3 whose layer mostly predicts what follows.

    The model's blocks add nothing, so a token depends on the one before alone. The layer's neither, and it passes the
    token's embedding on, with some noise.
    """
    save_with_mtp("deepseek_v3", directory)
    file = directory / "model.safetensors"
    tensors = load_file(file)
    for key, tensor in tensors.items():
        if key.endswith((".o_proj.weight", ".down_proj.weight", ".down_proj")):
            tensor.zero_()
    config = configuration("deepseek_v3")
    names, hidden = _Names(config.model_type, config.num_hidden_layers), config.hidden_size
    tensors[names.norm] = tensors["model.norm.weight"].clone()
    tensors[names.embedding_norm].fill_(1)
    noise = 0.02 * torch.randn(hidden, 2 * hidden, generator=torch.Generator().manual_seed(0))
    tensors[names.projection] = torch.eye(hidden, 2 * hidden) + noise
    save_file(tensors, file, metadata={"format": "pt"})
    return directory


class Reference:
    """Transformers' model and layer of a checkpoint from ``save_with_mtp``."""

    def __init__(self, directory: Path, kind: Any = AutoModelForCausalLM) -> None:
        """``kind``: of automatic classes of models."""
        self.model: PreTrainedModel = kind.from_pretrained(directory, dtype="float32", **EAGER).eval()
        compute_token_by_token(self.model)
        config: Any = self.model.config.get_text_config(decoder=True)
        if config.model_type.startswith("qwen"):  # which transformers knows only from newer configurations
            config.num_mtp_layers, config.mtp_layer_types = 1, ["full_attention"]
        elif getattr(config, "mlp_layer_types", None):
            config.num_mtp_layers, config.mtp_mlp_layer_types = 1, ["sparse"]
        else:  # it knows the layer only by the numbers of layers of published models
            config.num_mtp_layers = 1
        is_by_itself = config.model_type.startswith("qwen")
        own = r"^mtp\." if is_by_itself else rf"model\.layers\.{config.num_hidden_layers}\..*"
        self.model._keys_to_ignore_on_load_unexpected = [own]
        self.mtp: MtpModel = MtpModel.from_pretrained(self.model).eval()

    @torch.inference_mode()
    def hidden(self, ids: torch.Tensor) -> torch.Tensor:
        """The model's final hidden states [T, H] of ``ids`` [T]."""
        return self.model.model(ids[None]).last_hidden_state[0]  # type: ignore[no-any-return]

    @torch.inference_mode()
    def drafts(self, ids: torch.Tensor, count: int, start: int = 1) -> list[int]:
        """The ``count`` most likely tokens after ``ids`` [T], one after the other.

        The layer sees the tokens from ``start`` on.
        """
        cache = MtpCache(config=self.model.config.get_mtp_config())
        known, previous, first, drafts = ids, self.hidden(ids)[start - 1 : -1], start, list[int]()
        for _ in range(count):
            places = torch.arange(first, len(known))[None]
            hidden = self.mtp.forward_layer(0, previous[None], places, cache, input_ids=known[None, first:])
            drafts.append(int(self.mtp._project_to_logits(hidden[:, -1]).argmax()))
            first, previous = len(known), hidden[0, -1:]
            known = torch.cat([known, torch.tensor(drafts[-1:])])
        return drafts
