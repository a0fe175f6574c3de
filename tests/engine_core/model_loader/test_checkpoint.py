"""What a checkpoint says about itself, resolved against the options; what it asks for in vain, refused by name."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from engine_core.errors import CheckpointError, UnsupportedModelError
from engine_core.model_loader.checkpoint import Checkpoint
from tests.engine_core.models.driver import open_at

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 100,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "torch_dtype": "bfloat16",
    "eos_token_id": 7,
    "bos_token_id": 6,
}
MISTRAL = LLAMA | {"architectures": ["MistralForCausalLM"], "model_type": "mistral"}
QWEN2 = LLAMA | {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}
QWEN3 = LLAMA | {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}
WINDOWED = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}


def open_config(
    directory: Path, config: dict[str, Any], generation: dict[str, Any] | None = None, **options: object
) -> Checkpoint:
    config = {name: value for name, value in config.items() if value is not ...}
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    if generation is not None:
        (directory / "generation_config.json").write_text(json.dumps(generation))
    return open_at(directory, **options)


def test_what_is_read(tmp_path: Path) -> None:
    generation = {"eos_token_id": [3, 7, 3], "temperature": 0.6, "top_k": 20, "top_p": None, "do_sample": True}
    checkpoint = open_config(tmp_path, LLAMA, generation, served_model_name="little")
    assert checkpoint.path == tmp_path
    assert checkpoint.dtype == torch.bfloat16
    spec = checkpoint.spec
    assert (spec.name, spec.architecture, spec.vocab_size) == ("little", "LlamaForCausalLM", 100)
    assert (spec.max_model_len, spec.dtype, spec.eos_token_ids) == (256, "bfloat16", (3, 7))
    assert spec.default_sampling == {"temperature": 0.6, "top_k": 20}


@pytest.mark.parametrize(
    ("rope", "theta", "rope_type", "longest"),
    [
        ({"rope_theta": 5000.0}, 5000.0, "default", 256),
        ({"rope_theta": 5000.0, "rope_scaling": {"type": "linear", "factor": 4.0}}, 5000.0, "linear", 1024),
        ({"rope_parameters": {"rope_type": "linear", "rope_theta": 99.0, "factor": 2.0}}, 99.0, "linear", 512),
        (
            {"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 200}},
            10000.0,
            "yarn",
            800,
        ),
    ],
)
def test_rope_of_old_and_new_configurations(
    rope: dict[str, Any], theta: float, rope_type: str, longest: int, tmp_path: Path
) -> None:
    checkpoint = open_config(tmp_path, LLAMA | rope)
    (read,) = checkpoint.config.distinct_ropes
    assert (read.theta, read.rope_type) == (theta, rope_type)
    assert checkpoint.spec.max_model_len == longest


@pytest.mark.parametrize(
    ("named", "asked", "stored", "expected"),
    [
        ("bfloat16", "auto", torch.float16, "bfloat16"),
        ("bfloat16", "float16", torch.float32, "float16"),
        (None, "auto", torch.float16, "float16"),
    ],
)
def test_dtype(named: str | None, asked: str, stored: torch.dtype, expected: str, tmp_path: Path) -> None:
    save_file({"a": torch.zeros(1, dtype=stored)}, tmp_path / "model.safetensors")
    checkpoint = open_config(tmp_path, LLAMA | {"torch_dtype": named}, dtype=asked)
    assert checkpoint.spec.dtype == expected
    assert checkpoint.dtype == getattr(torch, expected)


def test_dtype_of_dummy_weights_needs_no_file(tmp_path: Path) -> None:
    assert open_config(tmp_path, LLAMA | {"torch_dtype": None}, load_format="dummy").spec.dtype == "float32"


AWQ = {"w_bit": 4, "q_group_size": 128, "zero_point": True, "version": "GEMM"}
GPTQ = {"bits": 4, "group_size": 128, "sym": True, "desc_act": False}


@pytest.mark.parametrize(
    ("file", "content", "kept"),
    [
        ("config.json", LLAMA | {"quantization_config": {"quant_method": "AWQ", **AWQ}}, "AWQ, 4 bits in groups"),
        ("quant_config.json", AWQ, "AWQ, 4 bits in groups"),
        ("quantize_config.json", GPTQ, "GPTQ, 4 bits in groups"),
        ("hf_quant_config.json", {"quantization": {"quant_algo": "NVFP4"}}, None),
        ("hf_quant_config.json", {"quantization": ["NVFP4"]}, "bfloat16"),
        ("hf_quant_config.json", {"quantization": {"quant_algo": None, "kv_cache_quant_algo": "FP8"}}, "bfloat16"),
    ],
)
def test_where_and_how_a_quantization_may_be_said(
    file: str, content: dict[str, Any], kept: str | None, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    (tmp_path / file).write_text(json.dumps(content))
    if kept is None:
        with pytest.raises(UnsupportedModelError, match="is quantized with ModelOpt, which is not supported"):
            open_at(tmp_path, "dummy")
    else:
        assert kept in open_at(tmp_path, "dummy").kept_as


@pytest.mark.parametrize(
    ("config", "options", "windows"),
    [
        (MISTRAL | {"sliding_window": 1}, {}, (1, 1, 1)),
        (MISTRAL | {"sliding_window": None}, {}, (None, None, None)),
        (MISTRAL | {"sliding_window": 200}, {"max_model_len": 200}, (None, None, None)),
        (QWEN2 | WINDOWED | {"max_window_layers": 1}, {}, (None, 8, 8)),
        (QWEN2 | WINDOWED | {"layer_types": ["sliding_attention", "full_attention"] * 2}, {}, (8, None, 8, None)),
        (QWEN2 | WINDOWED | {"use_sliding_window": False}, {}, (None, None, None)),
        (LLAMA | {"sliding_window": 8}, {}, (None, None, None)),
    ],
)
def test_windows(
    config: dict[str, Any], options: dict[str, int], windows: tuple[int | None, ...], tmp_path: Path
) -> None:
    read = open_config(tmp_path, config | {"num_hidden_layers": len(windows)}, **options).config
    assert read.sliding_windows == windows


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["FooForCausalLM"]}, "'FooForCausalLM' is not supported: transformers"),
        (
            {"rope_scaling": {"type": "bogus", "factor": 2.0}},
            "rope type 'bogus' is not supported: expected one of default",
        ),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5 is not supported: expected 1, as llama rotates"),
        ({"hidden_act": "gelu_10"}, "hidden_act 'gelu_10' is not supported: expected one of gelu, gelu_new,"),
        (
            {"quantization_config": {"quant_method": "aqlm", "bits": 2}},
            r"with AQLM, .* choose one with AWQ, .*GPTQ.* or compressed-tensors, or one that is not quantized,",
        ),
        ({"quantization_config": {"quant_method": "AQLM"}}, "is quantized with AQLM, which is not"),
        ({"quantization_config": ["int4"]}, "is quantized with a method that config.json does not name"),
        ({"quantization": {"group_size": 64, "bits": 4}}, "is quantized with MLX, which is not"),
        ({"max_position_embeddings": 1}, "takes 1 token .*: a prompt and its output need at least 2"),
        ({"torch_dtype": "float64"}, "has weights in float64, .*: set --dtype to one of float32, bfloat16, float16"),
    ],
)
def test_unsupported(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        open_config(tmp_path, LLAMA | changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ...}, r"names no architecture \(architectures=None\)"),
        ({"model_type": ...}, r"config\.json"),
        ({"model_type": "mistral"}, "contradicts itself: LlamaForCausalLM has model_type 'llama', not 'mistral'"),
        ({"hidden_size": "wide"}, r"config\.json is not usable: .*hidden_size"),
        ({"hidden_size": 33}, "hidden size"),
        ({"torch_dtype": "banana"}, r"torch_dtype='banana' is not usable: expected one of float32, bfloat16, float16$"),
        ({"dtype": "nn"}, r"config\.json: dtype='nn' is not usable: expected one of float32"),
        ({"num_hidden_layers": 0}, "num_hidden_layers=0 is not usable"),
        ({"vocab_size": -5}, "vocab_size=-5 is not usable"),
        ({"num_key_value_heads": 3}, "num_attention_heads=4 is not a multiple of num_key_value_heads=3"),
        ({"head_dim": 0}, "head_dim=0 is not usable"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers=1000000000 is not usable: expected at most 4096"),
        ({"vocab_size": 10**12}, "vocab_size=1000000000000 is not usable"),
        ({"max_position_embeddings": 2**31}, "max_position_embeddings=2147483648 is not usable"),
        ({"rms_norm_eps": -1.0}, "rms_norm_eps=-1.0 is not usable: expected a number from 0 to 1"),
        ({"eos_token_id": 100}, "eos_token_id=100 is not usable: expected ids below vocab_size 100"),
        (QWEN2 | WINDOWED | {"sliding_window": 0}, "sliding_window=0 is not usable: expected a positive whole number"),
        (QWEN2 | WINDOWED | {"layer_types": ["full_attention"]}, "layer_types|num_hidden_layers"),
        (
            QWEN2 | {"layer_types": ["sliding_attention"] * 2, "sliding_window": 8},
            "set use_sliding_window to true$",
        ),
    ],
)
def test_damaged_config(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=message):
        open_config(tmp_path, LLAMA | changes)


END = {"content": "<end>", "special": True}
LISTED = {"added_tokens_decoder": {"5": {"content": "<pad>"}, "9": END}}
IN_FILE = {"added_tokens": [{"id": 5, "content": "<pad>"}, {"id": 9, "content": "<end>"}]}


@pytest.mark.parametrize(
    ("generation", "declared", "files", "ids"),
    [
        ([106, 1], None, {}, (106, 1)),
        (None, [3, 4, 3], {}, (3, 4)),
        (None, None, {}, ()),
        ([3], [4], {"tokenizer_config": LISTED | {"eos_token": "<end>"}}, (3, 9)),
        ([9, 3], None, {"tokenizer_config": LISTED | {"eos_token": END}}, (9, 3)),
        (None, None, {"tokenizer_config": {"eos_token": END}, "tokenizer": IN_FILE}, (9,)),
        (None, 3, {"special_tokens_map": {"eos_token": "<end>"}, "tokenizer": IN_FILE}, (3, 9)),
        (None, 3, {"tokenizer_config": LISTED, "special_tokens_map": {"eos_token": "<end>"}}, (3,)),
        (3, None, {"tokenizer_config": {"eos_token": None}, "tokenizer": IN_FILE}, (3,)),
        (3, None, {"tokenizer_config": {"added_tokens_decoder": {"200": END}, "eos_token": "<end>"}}, (3,)),
        (3, None, {"tokenizer_config": {"added_tokens_decoder": {"-5": END}, "eos_token": "<end>"}}, (3,)),
    ],
)
def test_eos_ids_come_from_generation_or_model_and_from_the_tokenizer(
    generation: object, declared: object, files: dict[str, Any], ids: tuple[int, ...], tmp_path: Path
) -> None:
    for name, content in files.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    config = LLAMA | {"eos_token_id": declared, "vocab_size": 120}
    assert open_config(tmp_path, config, {"eos_token_id": generation}).spec.eos_token_ids == ids


def test_the_eos_token_is_that_of_the_tokenizer_in_use(tmp_path: Path) -> None:
    for name, content in {"model": "<pad>", "other": "<end>"}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "tokenizer_config.json").write_text(json.dumps(LISTED | {"eos_token": content}))
    assert open_config(tmp_path / "model", LLAMA).spec.eos_token_ids == (7, 5)
    other = open_config(tmp_path / "model", LLAMA, tokenizer=str(tmp_path / "other"))
    assert other.spec.eos_token_ids == (7, 9)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer_config", {"added_tokens_decoder": [1]}, "special tokens of its tokenizer cannot be read"),
        ("tokenizer_config", {"added_tokens_decoder": {"x": END}}, "special tokens of its tokenizer cannot be read"),
        ("generation_config", {"temperature": "hot"}, "temperature='hot' is not a number"),
        ("generation_config", {"eos_token_id": "x"}, "eos_token_id='x'"),
        ("generation_config", {"eos_token_id": True}, "eos_token_id=True"),
    ],
)
def test_damaged_values_beside_the_configuration(
    name: str, content: dict[str, Any], message: str, tmp_path: Path
) -> None:
    (tmp_path / f"{name}.json").write_text(json.dumps({"eos_token": "<end>"} | content))
    with pytest.raises(CheckpointError, match=message):
        open_config(tmp_path, LLAMA)


def grow(path: Path) -> None:
    with path.open("a") as file:
        file.truncate(3 << 30)  # sparse


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        *(
            (partial(Path.write_bytes, data=content), "(cannot be read as JSON|does not hold)")
            for content in (b"", b"{", b"[1]", b'"x"', b"\xff\xfe", b"[" * 10**5)
        ),
        (grow, "has 3221225472 bytes: expected at most 16777216; download"),
        (os.mkfifo, "is not a regular file"),
    ],
)
@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
def test_files_that_are_not_json_objects(
    name: str, damage: Callable[[Path], object], message: str, tmp_path: Path
) -> None:
    """What is too large or no file at all is refused unread."""
    if name != "config.json":
        (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    damage(tmp_path / name)
    with pytest.raises(CheckpointError, match=f"{name} {message}"):
        open_at(tmp_path)


def test_code_in_a_checkpoint_is_not_run(tmp_path: Path) -> None:
    (tmp_path / "evil.py").write_text("raise SystemExit('ran')")
    changes = {"auto_map": {"AutoConfig": "evil.Config"}}
    assert open_config(tmp_path, LLAMA | changes).spec.architecture == "LlamaForCausalLM"
    with pytest.raises(CheckpointError):
        open_config(tmp_path, LLAMA | changes | {"model_type": "evil"})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model_type", ["llama"]),
        ("model_type", {"a": 1}),
        ("architectures", {"x" * 9000: 1}),
        ("hidden_size", "\x1b\n"),
    ],
)
def test_a_refusal_is_one_short_line_whatever_it_quotes(tmp_path: Path, field: str, value: object) -> None:
    with pytest.raises(CheckpointError) as refused:
        open_config(tmp_path, LLAMA | {field: value})
    text = str(refused.value)
    assert text.isprintable()
    assert len(text) < 2000
