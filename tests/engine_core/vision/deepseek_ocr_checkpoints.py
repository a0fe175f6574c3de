"""Tiny random checkpoints of DeepSeek-OCR in the form in which DeepSeek publishes them: fields, names, tokens."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

BOS, EOS, PAD = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>"
IMAGE = "<image>"
MARKS = ("<|ref|>", "<|/ref|>", "<|det|>", "<|/det|>", "<|grounding|>", "<td>", "</td>", "<tr>", "</tr>")
TURNS = ("<|User|>", "<|Assistant|>")
IN_ORDER = (
    "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for part in m.content %}"
    "{{ '<image>' if part.type == 'image' else part.text }}\n{% endfor %}{% endif %}{% endfor %}"
)
"""A chat template that shows pictures where messages have them; Ringline's own for this model shows them first."""
HIDDEN = 64
LANGUAGE: dict[str, Any] = {
    "architectures": ["DeepseekV2ForCausalLM"],
    "auto_map": {"AutoModelForCausalLM": "modeling_deepseekv2.DeepseekV2ForCausalLM"},
    "bos_token_id": 0,
    "eos_token_id": 1,
    "first_k_dense_replace": 1,
    "hidden_size": HIDDEN,
    "intermediate_size": 112,
    "kv_lora_rank": None,
    "lm_head": True,
    "max_position_embeddings": 8192,
    "moe_intermediate_size": 24,
    "n_group": 1,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "num_attention_heads": 4,
    "num_experts_per_tok": 3,
    "num_hidden_layers": 2,
    "num_key_value_heads": 4,
    "q_lora_rank": None,
    "qk_nope_head_dim": 0,
    "qk_rope_head_dim": 0,
    "rm_head": False,
    "topk_group": 1,
    "topk_method": "greedy",
    "torch_dtype": "bfloat16",
    "use_mla": False,
    "v_head_dim": 0,
}
SAM: dict[str, Any] = {
    "downsample_channels": [40, 48],
    "global_attn_indexes": [1],
    "heads": 2,
    "layers": 2,
    "width": 32,
}
CLIP: dict[str, Any] = {"heads": 3, "image_size": 56, "layers": 2, "patch_size": 14, "width": 48}
SIZES: dict[str, Any] = {"base_size": 256, "image_size": 128, "crop_mode": True, "min_crops": 2, "max_crops": 6}
"""In preprocessor_config.json, which the published checkpoint lacks: its sizes are 1024 and 640."""
NECK, WINDOW = 256, 14
"""Fixed in SAM's encoder, like the factor 4 of inner widths."""


def write_deepseek_ocr(directory: Path, seed: int = 0, dtype: torch.dtype = torch.float32) -> Path:
    """Write a checkpoint of DeepSeek-OCR into ``directory``, which may exist."""
    directory.mkdir(parents=True, exist_ok=True)
    vocab_size = _write_tokenizer(directory)
    shapes = _text_shapes(vocab_size) | _sam_shapes(256) | _clip_shapes() | _joining_shapes(2 * CLIP["width"])
    vision = {
        "image_size": 256,
        "mlp_ratio": 3.7362,
        "model_name": "deeplip_b_l",
        "model_type": "vision",
        "width": {"clip-l-14-224": CLIP, "sam_vit_b": SAM},
    }
    _write(directory, "DeepseekOCRForCausalLM", "DeepseekOCR", vision, 2 * CLIP["width"], vocab_size)
    _write_json(directory / "preprocessor_config.json", SIZES)
    _save(directory, shapes, seed, dtype)
    return directory


def _write(
    directory: Path, architecture: str, name: str, vision: dict[str, Any], features: int, vocab_size: int
) -> None:
    """config.json and processor_config.json."""
    language = LANGUAGE | {"vocab_size": vocab_size}
    beside = {key: value for key, value in language.items() if key not in ("architectures", "auto_map", "torch_dtype")}
    module = f"modeling_{name.lower()}"
    config = {
        "_name_or_path": f"deepseek-ai/{name}",
        "candidate_resolutions": [[1024, 1024]],
        "global_view_pos": "head",
        "architectures": [architecture],
        "auto_map": {"AutoConfig": f"{module}.{name}Config", "AutoModel": f"{module}.{architecture}"},
        "language_config": language,
        "model_type": "deepseek_vl_v2",
        "projector_config": {
            "input_dim": features,
            "model_type": "mlp_projector",
            "n_embed": HIDDEN,
            "projector_type": "linear",
        },
        "tile_tag": "2D",
        "torch_dtype": "bfloat16",
        "transformers_version": "4.46.3",
        "vision_config": vision,
        **beside,
    }
    processor = {
        "add_special_token": False,
        "candidate_resolutions": [[1024, 1024]],
        "downsample_ratio": 4,
        "ignore_id": -100,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "image_token": IMAGE,
        "mask_prompt": False,
        "normalize": True,
        "pad_token": PAD,
        "patch_size": 16,
        "processor_class": "DeepseekVLV2Processor",
        "sft_format": "deepseek",
    }
    _write_json(directory / "config.json", config)
    _write_json(directory / "processor_config.json", processor)
    # the code that such a checkpoint brings: whoever runs it fails
    (directory / f"{module}.py").write_text("raise AssertionError('code of a checkpoint was executed')\n")


def _write_tokenizer(directory: Path) -> int:
    """A tokenizer of bytes with the published one's special tokens; returns the number of ids."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: index for index, token in enumerate([BOS, EOS, PAD, *letters])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = [BOS, EOS, PAD, IMAGE, *MARKS, *TURNS]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    tokenizer.save(str(directory / "tokenizer.json"))
    named = {"bos_token": BOS, "eos_token": EOS, "pad_token": PAD}
    added = {
        str(tokenizer.token_to_id(token)): {
            "content": token,
            "lstrip": False,
            "normalized": False,
            "rstrip": False,
            "single_word": False,
            "special": True,
        }
        for token in special
    }
    _write_json(
        directory / "tokenizer_config.json",
        {
            "add_bos_token": True,
            "add_eos_token": False,
            "added_tokens_decoder": added,
            "clean_up_tokenization_spaces": False,
            "model_max_length": 8192,
            "tokenizer_class": "LlamaTokenizerFast",
            **named,
        },
    )
    _write_json(directory / "special_tokens_map.json", named)
    return tokenizer.get_vocab_size() + 5


def _text_shapes(vocab_size: int) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (vocab_size, HIDDEN),
        "model.norm.weight": (HIDDEN,),
        "lm_head.weight": (vocab_size, HIDDEN),
    }
    small = LANGUAGE["moe_intermediate_size"]
    for layer in range(LANGUAGE["num_hidden_layers"]):
        prefix = f"model.layers.{layer}"
        shapes |= {f"{prefix}.self_attn.{name}_proj.weight": (HIDDEN, HIDDEN) for name in "qkvo"}
        shapes |= {f"{prefix}.{name}.weight": (HIDDEN,) for name in ("input_layernorm", "post_attention_layernorm")}
        if layer < LANGUAGE["first_k_dense_replace"]:
            shapes |= _gated_shapes(f"{prefix}.mlp", LANGUAGE["intermediate_size"])
            continue
        shapes[f"{prefix}.mlp.gate.weight"] = (LANGUAGE["n_routed_experts"], HIDDEN)
        shapes |= _gated_shapes(f"{prefix}.mlp.shared_experts", small * LANGUAGE["n_shared_experts"])
        for expert in range(LANGUAGE["n_routed_experts"]):
            shapes |= _gated_shapes(f"{prefix}.mlp.experts.{expert}", small)
    return shapes


def _gated_shapes(prefix: str, inner: int, hidden: int = HIDDEN) -> dict[str, tuple[int, ...]]:
    return {
        f"{prefix}.gate_proj.weight": (inner, hidden),
        f"{prefix}.up_proj.weight": (inner, hidden),
        f"{prefix}.down_proj.weight": (hidden, inner),
    }


def _sam_shapes(image_size: int) -> dict[str, tuple[int, ...]]:
    width, prefix, side = SAM["width"], "model.sam_model", image_size // 16
    size, (first, second) = width // SAM["heads"], SAM["downsample_channels"]
    shapes: dict[str, tuple[int, ...]] = {
        f"{prefix}.pos_embed": (1, side, side, width),
        f"{prefix}.patch_embed.proj.weight": (width, 3, 16, 16),
        f"{prefix}.patch_embed.proj.bias": (width,),
        f"{prefix}.neck.0.weight": (NECK, width, 1, 1),
        f"{prefix}.neck.2.weight": (NECK, NECK, 3, 3),
        f"{prefix}.net_2.weight": (first, NECK, 3, 3),
        f"{prefix}.net_3.weight": (second, first, 3, 3),
        **_affine(f"{prefix}.neck.1", NECK),
        **_affine(f"{prefix}.neck.3", NECK),
    }
    for layer in range(SAM["layers"]):
        block = f"{prefix}.blocks.{layer}"
        rows = 2 * (side if layer in SAM["global_attn_indexes"] else WINDOW) - 1
        shapes |= {f"{block}.attn.rel_pos_{axis}": (rows, size) for axis in "hw"}
        shapes |= _affine(f"{block}.norm1", width) | _affine(f"{block}.norm2", width)
        shapes |= _affine(f"{block}.attn.qkv", 3 * width, width) | _affine(f"{block}.attn.proj", width, width)
        shapes |= _affine(f"{block}.mlp.lin1", 4 * width, width) | _affine(f"{block}.mlp.lin2", width, 4 * width)
    return shapes


def _clip_shapes() -> dict[str, tuple[int, ...]]:
    width, prefix, patch = CLIP["width"], "model.vision_model", CLIP["patch_size"]
    shapes: dict[str, tuple[int, ...]] = {
        f"{prefix}.embeddings.class_embedding": (width,),
        f"{prefix}.embeddings.patch_embedding.weight": (width, 3, patch, patch),
        f"{prefix}.embeddings.position_embedding.weight": ((CLIP["image_size"] // patch) ** 2 + 1, width),
        **_affine(f"{prefix}.pre_layrnorm", width),
    }
    for layer in range(CLIP["layers"]):
        block = f"{prefix}.transformer.layers.{layer}"
        shapes |= _affine(f"{block}.layer_norm1", width) | _affine(f"{block}.layer_norm2", width)
        shapes |= _affine(f"{block}.self_attn.qkv_proj", 3 * width, width)
        shapes |= _affine(f"{block}.self_attn.out_proj", width, width)
        shapes |= _affine(f"{block}.mlp.fc1", 4 * width, width) | _affine(f"{block}.mlp.fc2", width, 4 * width)
    return shapes


def _joining_shapes(features: int) -> dict[str, tuple[int, ...]]:
    vectors = {"model.image_newline": (HIDDEN,), "model.view_seperator": (HIDDEN,)}
    return vectors | _affine("model.projector.layers", HIDDEN, features)


def _affine(name: str, *shape: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": shape, f"{name}.bias": shape[:1]}


def _save(directory: Path, shapes: dict[str, tuple[int, ...]], seed: int, dtype: torch.dtype) -> None:
    """Random tensors, by which numbers neither grow nor vanish; the weights of norms are around one."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape in shapes.items():
        fan_in = math.prod(shape[1:]) if len(shape) > 1 and "embed" not in name and "rel_pos" not in name else 16
        tensor = torch.randn(shape, generator=generator) * (1.5 if name == "lm_head.weight" else 1.0) / fan_in**0.5
        is_norm = len(shape) == 1 and name.endswith(".weight")
        tensors[name] = (tensor + 1 if is_norm else tensor).to(dtype)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})


def _write_json(path: Path, fields: dict[str, Any]) -> None:
    path.write_text(json.dumps(fields, indent=1, ensure_ascii=False))
