"""Names of tensors, as index files of published checkpoints list them.

In a pattern, ``*`` stands for each layer, and braces for each of the names or numbers in them, as in a shell.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

_BRACES = re.compile(r"\{([^{}]*)\}")
_ENDS = ("model.{embed_tokens,norm}.weight", "lm_head.weight")
_TWO_NORMS = "model.layers.*.{input,post_attention}_layernorm.weight"
_ATTENTION = "model.layers.*.self_attn.{q,k,v,o}_proj.weight"
_BIASED = "model.layers.*.self_attn.{q,k,v}_proj.bias"
_QK_NORMS = "model.layers.*.self_attn.{q,k}_norm.weight"
_DENSE = "model.layers.*.mlp.{gate,up,down}_proj.weight"
_LLAMA = (*_ENDS, _TWO_NORMS, _ATTENTION, _DENSE)
_QWEN2 = (*_LLAMA, _BIASED)
_QWEN3 = (*_LLAMA, _QK_NORMS)
_GEMMA2 = (_ENDS[0], _ATTENTION, _DENSE, _TWO_NORMS, "model.layers.*.{pre,post}_feedforward_layernorm.weight")
_GEMMA4_LOCAL = "{" + ",".join(str(layer) for layer in range(60) if layer % 6 != 5) + "}"
_GEMMA4 = (
    *(each for each in _GEMMA2 if each is not _ATTENTION),
    "model.layers.*.self_attn.{q,k,o}_proj.weight",
    f"model.layers.{_GEMMA4_LOCAL}.self_attn.v_proj.weight",  # elsewhere keys are values, too
)


def _listed(layers: Iterable[int]) -> str:
    return "{" + ",".join(map(str, layers)) + "}"


_FOURTH, _OTHERS = (_listed(each for each in range(48) if (each % 4 == 3) is attends) for attends in (True, False))
_FOURTH_OF_32, _OTHERS_OF_32 = (
    _listed(each for each in range(32) if (each % 4 == 3) is attends) for attends in (True, False)
)
_OLMO2 = (*_ENDS, _ATTENTION, _DENSE, _QK_NORMS, "model.layers.*.post_{attention,feedforward}_layernorm.weight")
_LATENT = (
    *_ENDS,
    _TWO_NORMS,
    "model.layers.*.self_attn.{kv_a_proj_with_mqa,kv_a_layernorm,kv_b_proj,o_proj}.weight",
)
_WHOLE_QUERIES = "model.layers.*.self_attn.q_proj.weight"
_LATENT_QUERIES = "model.layers.*.self_attn.{q_a_proj,q_a_layernorm,q_b_proj}.weight"
_STARCODER = (
    "model.layers.*.{self_attn.{q,k,v,o}_proj,mlp.{c_fc,c_proj},input_layernorm,post_attention_layernorm}.{weight,bias}"
)
_SIGLIP = (
    "vision_tower.vision_model.encoder.layers.{0..26}."
    "{self_attn.{q,k,v,out}_proj,mlp.fc{1,2},layer_norm{1,2}}.{weight,bias}"
)


def _sparse(first: int, layers: int, experts: int, corrected: bool = True) -> tuple[str, ...]:
    """The feed-forward blocks of DeepSeek and GLM, from layer ``first`` on with experts and one that is shared."""
    blocks = [
        f"model.layers.{{{first}..{layers - 1}}}.mlp.{block}"
        for block in (
            f"experts.{{0..{experts - 1}}}.{{gate,up,down}}_proj.weight",
            "shared_experts.{gate,up,down}_proj.weight",
            "gate.weight",
        )
    ]
    dense = f"model.layers.{{0..{first - 1}}}.mlp.{{gate,up,down}}_proj.weight"
    return dense, *blocks, *([f"{blocks[-1].removesuffix('.weight')}.e_score_correction_bias"] if corrected else [])


def _predicting(layer: int, experts: int) -> tuple[str, ...]:
    """Some of a layer that predicts further tokens."""
    return (
        f"model.layers.{layer}.{{embed_tokens,enorm,hnorm,eh_proj,shared_head.norm,shared_head.head}}.weight",
        f"model.layers.{layer}.mlp.experts.{{0..{experts - 1}}}.{{gate,up,down}}_proj.weight",
    )


def _inside(prefix: str, patterns: tuple[str, ...], head: str = "lm_head") -> tuple[str, ...]:
    """The patterns of a text model, with ``prefix`` for ``model``."""
    return tuple(
        head + each.removeprefix("lm_head") if each.startswith("lm_head") else prefix + each.removeprefix("model")
        for each in patterns
    )


LAYOUTS: dict[str, tuple[str, ...]] = {
    "meta-llama/Llama-2-7b-chat-hf": (*_LLAMA, "model.layers.*.self_attn.rotary_emb.inv_freq"),
    "meta-llama/Llama-3.2-1B-Instruct": (_ENDS[0], *_LLAMA[2:]),
    "mistralai/Mistral-Nemo-Instruct-2407": _LLAMA,
    "mistralai/Mixtral-8x7B-Instruct-v0.1": (
        *_ENDS,
        _TWO_NORMS,
        _ATTENTION,
        "model.layers.*.block_sparse_moe.gate.weight",
        "model.layers.*.block_sparse_moe.experts.{0..7}.w{1,2,3}.weight",
    ),
    "Qwen/Qwen2.5-0.5B-Instruct": (_ENDS[0], *_QWEN2[2:]),
    "Qwen/Qwen2.5-7B-Instruct": _QWEN2,
    "Qwen/Qwen1.5-MoE-A2.7B-Chat": (
        *_ENDS,
        _TWO_NORMS,
        _ATTENTION,
        _BIASED,
        "model.layers.*.mlp.{gate,shared_expert_gate}.weight",
        "model.layers.*.mlp.shared_expert.{gate,up,down}_proj.weight",
        "model.layers.*.mlp.experts.{0..59}.{gate,up,down}_proj.weight",
    ),
    "Qwen/Qwen3-0.6B": _QWEN3,
    "Qwen/Qwen3-8B": _QWEN3,
    "Qwen/Qwen3-30B-A3B": (
        *_ENDS,
        _TWO_NORMS,
        _ATTENTION,
        _QK_NORMS,
        "model.layers.*.mlp.gate.weight",
        "model.layers.*.mlp.experts.{0..127}.{gate,up,down}_proj.weight",
    ),
    "Qwen/Qwen3-Next-80B-A3B-Instruct": (
        *_ENDS,
        _TWO_NORMS,
        f"model.layers.{_FOURTH}.self_attn.{{q,k,v,o}}_proj.weight",
        f"model.layers.{_FOURTH}.self_attn.{{q,k}}_norm.weight",
        f"model.layers.{_OTHERS}.linear_attn.{{A_log,dt_bias,{{conv1d,norm}}.weight}}",
        f"model.layers.{_OTHERS}.linear_attn.{{in_proj_qkvz,in_proj_ba,out_proj}}.weight",
        "model.layers.*.mlp.{gate,shared_expert_gate}.weight",
        "model.layers.*.mlp.shared_expert.{gate,up,down}_proj.weight",
        "model.layers.*.mlp.experts.{0..511}.{gate,up,down}_proj.weight",
        "mtp.layers.0.mlp.experts.{0..511}.{gate,up,down}_proj.weight",
        "mtp.{fc,norm}.weight",
    ),
    "Qwen/Qwen3.5-9B": (
        *_inside(
            "model.language_model",
            (
                *_ENDS,
                _TWO_NORMS,
                _DENSE,
                f"model.layers.{_FOURTH_OF_32}.self_attn.{{q,k,v,o}}_proj.weight",
                f"model.layers.{_FOURTH_OF_32}.self_attn.{{q,k}}_norm.weight",
                f"model.layers.{_OTHERS_OF_32}.linear_attn.{{A_log,dt_bias,{{conv1d,norm}}.weight}}",
                f"model.layers.{_OTHERS_OF_32}.linear_attn.{{in_proj_{{qkv,z,b,a}},out_proj}}.weight",
            ),
        ),
        "model.visual.blocks.{0..26}.attn.{qkv,proj}.{weight,bias}",
        "mtp.layers.0.self_attn.{q,k,v,o}_proj.weight",
        "mtp.{fc,norm}.weight",
    ),
    "google/gemma-2b-it": (_ENDS[0], *_LLAMA[2:]),
    "google/gemma-2-2b-it": _GEMMA2,
    "google/gemma-3-1b-it": (*_GEMMA2, _QK_NORMS),
    "google/gemma-3-4b-it": (
        *_inside("language_model.model", (*_GEMMA2, _QK_NORMS)),
        _SIGLIP,
        "multi_modal_projector.{mm_input_projection_weight,mm_soft_emb_norm.weight}",
    ),
    "google/gemma-4-31B-it": (
        *_inside("model.language_model", (*_GEMMA4, _QK_NORMS, "model.layers.*.layer_scalar")),
        "model.vision_tower.encoder.layers.{0..26}.self_attn.{q,k,v,o}_proj.linear.weight",
        "model.embed_vision.embedding_projection.weight",
    ),
    "deepseek-ai/DeepSeek-V2-Lite-Chat": (*_LATENT, _WHOLE_QUERIES, *_sparse(1, 27, 64, corrected=False)),
    "deepseek-ai/DeepSeek-V3-0324": (*_LATENT, _LATENT_QUERIES, *_sparse(3, 61, 256), *_predicting(61, 256)),
    "moonshotai/Moonlight-16B-A3B-Instruct": (*_LATENT, _WHOLE_QUERIES, *_sparse(1, 27, 64)),
    "zai-org/glm-4-9b-chat-hf": (
        *_ENDS,
        _TWO_NORMS,
        _ATTENTION,
        _BIASED,
        "model.layers.*.mlp.{gate_up,down}_proj.weight",
    ),
    "zai-org/GLM-4-9B-0414": (
        *_ENDS,
        _TWO_NORMS,
        _ATTENTION,
        _BIASED,
        "model.layers.*.mlp.{gate_up,down}_proj.weight",
        "model.layers.*.post_{self_attn,mlp}_layernorm.weight",
    ),
    "zai-org/GLM-4.5-Air": (*_ENDS, _TWO_NORMS, _ATTENTION, _BIASED, *_sparse(1, 46, 128), *_predicting(46, 128)),
    "zai-org/GLM-4.7-Flash": (*_LATENT, _LATENT_QUERIES, *_sparse(1, 47, 64), *_predicting(47, 64)),
    "microsoft/Phi-3-mini-4k-instruct": (
        *_ENDS,
        _TWO_NORMS,
        "model.layers.*.{self_attn.{qkv,o}_proj,mlp.{gate_up,down}_proj}.weight",
    ),
    "microsoft/phi-2": (
        "model.embed_tokens.weight",
        "{lm_head,model.final_layernorm}.{weight,bias}",
        "model.layers.*.{input_layernorm,self_attn.{q_proj,k_proj,v_proj,dense},mlp.fc{1,2}}.{weight,bias}",
    ),
    "allenai/OLMo-1B-hf": ("model.embed_tokens.weight", _ATTENTION, _DENSE),
    "allenai/OLMo-2-1124-7B-Instruct": _OLMO2,
    "allenai/Olmo-3-7B-Instruct": _OLMO2,
    "ibm-granite/granite-3.3-2b-instruct": (_ENDS[0], *_LLAMA[2:]),
    "HuggingFaceTB/SmolLM3-3B": (_ENDS[0], *_LLAMA[2:]),
    "facebook/opt-125m": (
        "decoder.{embed_tokens,embed_positions}.weight",
        "decoder.final_layer_norm.{weight,bias}",
        "decoder.layers.*.{self_attn.{q,k,v,out}_proj,fc{1,2},self_attn_layer_norm,final_layer_norm}.{weight,bias}",
    ),
    "bigcode/starcoder2-3b": ("model.embed_tokens.weight", "model.norm.{weight,bias}", _STARCODER),
    "bigcode/starcoderbase-1b": (
        "transformer.{wte,wpe}.weight",
        "lm_head.weight",
        "transformer.ln_f.{weight,bias}",
        "transformer.h.*.{ln_{1,2},attn.c_{attn,proj},mlp.c_{fc,proj}}.{weight,bias}",
    ),
    "stabilityai/stablelm-2-1_6b-chat": (
        *(*_ENDS, _ATTENTION, _BIASED, _DENSE, _TWO_NORMS),
        "model.layers.*.{input,post_attention}_layernorm.bias",
        "model.norm.bias",
    ),
    "CohereLabs/c4ai-command-r-v01": (_ENDS[0], _ATTENTION, _DENSE, "model.layers.*.input_layernorm.weight"),
    "EleutherAI/pythia-70m": (
        "{gpt_neox.embed_in,embed_out}.weight",
        "gpt_neox.final_layer_norm.{weight,bias}",
        "gpt_neox.layers.*.attention.{bias,masked_bias,rotary_emb.inv_freq}",
        "gpt_neox.layers.*.{input,post_attention}_layernorm.{weight,bias}",
        "gpt_neox.layers.*.{attention.{query_key_value,dense},mlp.dense_{h_to_4h,4h_to_h}}.{weight,bias}",
    ),
    "Qwen/Qwen2-VL-2B-Instruct": (_ENDS[0], *_QWEN2[2:], "visual.blocks.{0..31}.attn.{qkv,proj}.{weight,bias}"),
    "Qwen/Qwen2.5-VL-7B-Instruct": (*_QWEN2, "visual.blocks.{0..31}.mlp.{gate,up,down}_proj.{weight,bias}"),
    "Qwen/Qwen3-VL-8B-Instruct": (
        *_inside("model.language_model", _QWEN3),
        "model.visual.blocks.{0..26}.attn.{qkv,proj}.{weight,bias}",
        "model.visual.deepstack_merger_list.{0..2}.linear_fc{1,2}.{weight,bias}",
    ),
    "Qwen/Qwen3-VL-30B-A3B-Instruct": (
        *_inside("model.language_model", (*_ENDS, _TWO_NORMS, _ATTENTION, _QK_NORMS)),
        "model.language_model.layers.*.mlp.{gate.weight,experts.gate_up_proj,experts.down_proj}",
        "model.visual.blocks.{0..26}.attn.{qkv,proj}.{weight,bias}",
    ),
    "Qwen/Qwen2.5-Omni-7B": (
        *_inside("thinker.model", _QWEN2, "thinker.lm_head"),
        "thinker.audio_tower.layers.{0..31}.self_attn.{q,k,v,out}_proj.weight",
        "talker.model.layers.{0..23}.self_attn.{q,k,v,o}_proj.weight",
        "token2wav.code2wav_dit_model.input_embed.proj.{weight,bias}",
    ),
    "mistralai/Mistral-Small-3.2-24B-Instruct-2506": (
        *_inside("language_model.model", _LLAMA, "language_model.lm_head"),
        "vision_tower.transformer.layers.{0..23}.attention.{q,k,v,o}_proj.weight",
        "multi_modal_projector.linear_{1,2}.weight",
    ),
    "mistralai/Voxtral-Mini-3B-2507": (
        *_inside("language_model.model", _LLAMA, "language_model.lm_head"),
        "audio_tower.layers.{0..31}.self_attn.{q,v,out}_proj.{weight,bias}",
    ),
    "llava-hf/llava-1.5-7b-hf": (
        *_inside("language_model.model", _LLAMA, "language_model.lm_head"),
        "vision_tower.vision_model.encoder.layers.{0..23}.mlp.fc{1,2}.{weight,bias}",
    ),
    "HuggingFaceTB/SmolVLM-Instruct": (
        *_inside("model.text_model", _LLAMA),
        "model.vision_model.encoder.layers.{0..26}.mlp.fc{1,2}.{weight,bias}",
        "model.connector.modality_projection.proj.weight",
    ),
    "CohereLabs/aya-vision-8b": (
        *_inside("language_model.model", (_ENDS[0], _ATTENTION, _DENSE, "model.layers.*.input_layernorm.weight")),
        "vision_tower.vision_model.encoder.layers.{0..26}.mlp.fc{1,2}.{weight,bias}",
    ),
    "zai-org/GLM-4.1V-9B-Thinking": (
        *_inside("model.language_model", (*_ENDS, _TWO_NORMS, _ATTENTION, _BIASED)),
        "model.language_model.layers.*.{mlp.{gate_up,down}_proj,post_{self_attn,mlp}_layernorm}.weight",
        "model.visual.blocks.{0..23}.attn.{qkv,proj}.weight",
    ),
}
"""By names of checkpoints."""


def expand(pattern: str, layers: int) -> list[str]:
    """The names that ``pattern`` stands for in a model of ``layers``."""
    return list(dict.fromkeys(_expand(pattern.replace("*", f"{{0..{layers - 1}}}"))))


def _expand(pattern: str) -> Iterator[str]:
    """Repeats names where braces are inside of others."""
    if (innermost := _BRACES.search(pattern)) is None:
        yield pattern
        return
    first, dots, last = innermost[1].partition("..")
    choices = map(str, range(int(first), int(last) + 1)) if dots else innermost[1].split(",")
    for choice in choices:
        yield from _expand(pattern[: innermost.start()] + choice + pattern[innermost.end() :])
