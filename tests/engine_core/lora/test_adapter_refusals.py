"""Whatever is wrong with an adapter ends in one sentence that says what, and what to do."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from engine_core.errors import AdapterError
from engine_core.lora.adapter import open_adapter, read_adapter
from engine_core.lora.files import WEIGHTS, TensorFile
from engine_core.lora.peft_config import CONFIG
from engine_core.lora.targets import LoRALimits, LoRATargets
from tests.engine_core.lora.adapters import LIMITS, save_adapter, targets_of, tiny_model

MODEL = tiny_model("qwen3", num_hidden_layers=1)
TARGETS = targets_of(MODEL)
PREFIX = "base_model.model.model.layers.0.self_attn."
Q_A, Q_B = PREFIX + "q_proj.lora_A.weight", PREFIX + "q_proj.lora_B.weight"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    directory = tmp_path_factory.mktemp("saved")
    save_adapter(tiny_model("qwen3", num_hidden_layers=1), directory, target_modules=["q_proj", "o_proj"])
    return json.loads((directory / CONFIG).read_text()), load_file(directory / WEIGHTS)


@pytest.fixture
def adapter(saved: tuple[dict[str, Any], dict[str, torch.Tensor]], tmp_path: Path) -> Path:
    config, tensors = saved
    (tmp_path / CONFIG).write_text(json.dumps(config))
    save_file(tensors, tmp_path / WEIGHTS)
    return tmp_path


def refused(directory: Path, problem: str, targets: LoRATargets = TARGETS, limits: LoRALimits = LIMITS) -> str:
    """Require that both ways to read an adapter refuse it."""
    for read in (open_adapter, read_adapter):
        with pytest.raises(AdapterError, match=problem) as error:
            read(directory, targets, limits)
        assert str(error.value).startswith(f"{directory}: ".replace("\0", "\\x00"))
    return str(error.value)


def test_a_sound_one_is_read(adapter: Path) -> None:
    assert read_adapter(adapter, TARGETS, LIMITS).file == open_adapter(adapter, TARGETS, LIMITS)


# --- files


@pytest.mark.parametrize("name", [CONFIG, WEIGHTS])
def test_files_that_are_missing_or_no_files(name: str, adapter: Path, tmp_path: Path) -> None:
    path = adapter / name
    path.unlink()
    refused(adapter, f"there is no {name}")
    path.symlink_to("/dev/zero")
    refused(adapter, f"{name} is not a regular file")
    path.unlink()
    path.symlink_to(path)
    refused(adapter, f"{name} cannot be read")
    path.unlink()
    path.mkdir()
    refused(adapter, f"{name} is not a regular file")
    path.rmdir()
    os.mkfifo(path)
    refused(adapter, f"{name} is not a regular file")
    path.unlink()
    path.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    refused(adapter, f"{name} is .* pointer of Git LFS: run git lfs pull")
    path.write_bytes(b"")
    refused(adapter, f"{name} is (not JSON|no safetensors file)")


def test_symbolic_links_are_followed(adapter: Path, tmp_path: Path) -> None:
    """As a cache of Hugging Face's hub has them."""
    linked = tmp_path / "linked"
    linked.mkdir()
    for name in (CONFIG, WEIGHTS):
        (linked / name).symlink_to(adapter / name)
    assert open_adapter(linked, TARGETS, LIMITS) == open_adapter(adapter, TARGETS, LIMITS)


def test_directories_that_are_none(adapter: Path) -> None:
    refused(adapter / "other", f"{adapter}/other: there is no such directory")
    refused(adapter / WEIGHTS, "cannot be read: Not a directory")
    refused(adapter / "x\0y", "cannot be read|no such directory")
    refused(adapter / ("x" * 300), "cannot be read: File name too long")


def test_pickled_tensors_are_not_read(adapter: Path) -> None:
    (adapter / WEIGHTS).rename(adapter / "adapter_model.bin")
    refused(
        adapter, r"adapter_model.bin, which loading may execute .* save_pretrained writes adapter_model.safetensors"
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[]", "does not hold a JSON object"),
        ("{", "is not JSON"),
        ('{"r": 1, "r": 2}', "'r' is there twice"),
        ("[" * 100_000, "is not JSON"),
        ('{"r": ' + "9" * 5000 + "}", "is not JSON"),
        ('{"a": "\ud800"}'.encode("utf-16", "surrogatepass").decode("latin1"), "is not JSON"),
        ('{"lora_alpha": NaN, "peft_type": "LORA"}', "lora_alpha=nan is not usable"),
        (" " * (5 << 20), "above the limit of"),
    ],
    ids=range(8),
)
def test_configurations_that_are_none(text: str, problem: str, adapter: Path) -> None:
    (adapter / CONFIG).write_text(text, "latin1")
    refused(adapter, problem)


def write(directory: Path, header: bytes, data: bytes = b"") -> None:
    (directory / WEIGHTS).write_bytes(struct.pack("<Q", len(header)) + header + data)


def entry(shape: list[Any], start: Any, end: Any, dtype: Any = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


@pytest.mark.parametrize(
    ("header", "problem"),
    [
        (
            {Q_A: entry([4, 32], 0, 512), Q_B: entry([32, 4], 256, 768)},
            "does not begin where the tensor before it ends",
        ),
        (
            {Q_A: entry([4, 32], 0, 512), Q_B: entry([32, 4], 520, 1032)},
            "does not begin where the tensor before it ends",
        ),
        ({Q_A: entry([4, 32], 8, 520)}, "does not begin where the tensor before it ends"),
        ({Q_A: entry([4, 32], 0, 512)}, "and its tensors need"),
        ({Q_A: entry([4, 32], 0, 508)}, "has 508 bytes, which its shape"),
        ({Q_A: entry([4, 32], 512, 0)}, "has -512 bytes"),
        ({Q_A: entry([4, 32.0], 0, 512)}, "is damaged"),
        ({Q_A: entry([4, True], 0, 16)}, "is damaged"),
        ({Q_A: entry([-4, 32], 0, 512)}, "is damaged"),
        ({Q_A: entry([2**60, 32], 0, 512)}, "is damaged"),
        ({Q_A: entry([9] * 1000, 0, 512)}, "is damaged"),
        ({Q_A: [1, 2]}, "is damaged"),
        ({Q_A: {"dtype": "F32"}}, "is damaged"),
        ({Q_A: entry([4, 32], 0, 128, "F8_E4M3")}, "is of type 'F8_E4M3'; expected one of F64, F32, BF16, F16"),
        ({Q_A: entry([4, 32], 0, 512, "I32")}, "is of type 'I32'"),
        ({f"{place}": entry([], 0, 4) for place in range(100)}, "has 100 tensors, above the limit of"),
        ({"__metadata__": {"a": "b" * 2_000_000}}, "has a header of .* bytes, above the limit of"),
        ({}, "and its tensors need"),
    ],
)
def test_headers_that_are_wrong(header: dict[str, Any], problem: str, adapter: Path) -> None:
    write(adapter, json.dumps(header).encode(), bytes(1024))
    refused(adapter, problem)


def test_headers_that_are_none(adapter: Path) -> None:
    path = adapter / WEIGHTS
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    refused(adapter, "and its tensors need")
    path.write_bytes(content + b"0")
    refused(adapter, "and its tensors need")
    path.write_bytes(content[:100])
    refused(adapter, "ends too early")
    path.write_bytes(content[:5])
    refused(adapter, "too short")
    path.write_bytes(struct.pack("<Q", 2**63) + content)
    refused(adapter, "has a header of 9223372036854775808 bytes")
    text = json.dumps({Q_A: entry([4, 32], 0, 512)})
    write(adapter, f"{text[:-1]}, {text[1:]}".encode(), bytes(512))
    refused(adapter, "is there twice")
    write(adapter, b"{}")
    refused(adapter, "has no tensors")
    write(adapter, b'{"a":' * 5000)
    refused(adapter, "is not JSON")


def test_a_file_that_is_cut_while_it_is_read(adapter: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = TensorFile.read

    def cut(self: TensorFile, *arguments: Any) -> Any:
        os.truncate(adapter / WEIGHTS, 1000)
        return read(self, *arguments)

    monkeypatch.setattr(TensorFile, "read", cut)
    with pytest.raises(AdapterError, match="ends too early, or has been cut while it was read"):
        open_adapter(adapter, TARGETS, LIMITS)


# --- tensors


def change(directory: Path, changed: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> None:
    save_file(changed(load_file(directory / WEIGHTS)), directory / WEIGHTS)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_numbers_that_are_not_finite(bad: float, dtype: torch.dtype, adapter: Path) -> None:
    def spoil(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        tensors[Q_B][3, 2] = bad
        return {name: each.to(dtype) for name, each in tensors.items()}

    change(adapter, spoil)
    refused(adapter, rf"q_proj.lora_B.weight' in .* has a number \({bad}\) that is not finite in the model's float32")


def test_numbers_that_the_models_type_lacks(adapter: Path) -> None:
    change(adapter, lambda tensors: tensors | {Q_B: torch.full((32, 4), -1e5)})
    open_adapter(adapter, TARGETS, LIMITS)
    refused(
        adapter,
        r"has a number \(-100000\) that is not finite in the model's float16",
        replace(TARGETS, dtype="float16"),
    )


def new(name: str, *shape: int) -> Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]:
    return lambda tensors: tensors | {name: torch.zeros(shape)}


def without(name: str) -> Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]:
    return lambda tensors: {each: tensor for each, tensor in tensors.items() if each != name}


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        (without(Q_A), "q_proj.lora_B.weight' alone: the other of lora_A and lora_B is missing"),
        (without(Q_B), "q_proj.lora_A.weight' alone"),
        (new(PREFIX + "q_proj.lora_A.default.weight", 4, 32), "two tensors for one place"),
        (new(Q_A, 8, 32), "lora_A.weight' has rank 8, but by adapter_config.json .* it is 4"),
        (new(Q_B, 32, 5), "lora_B.weight' has rank 5, but by adapter_config.json .* it is 4"),
        (new(Q_A, 4, 64), r"has shape \[4, 64\], but for this model's .*q_proj it must be \[4, 32\]: .*the base that"),
        (new(Q_B, 64, 4), r"has shape \[64, 4\], but for this model's .*q_proj it must be \[32, 4\]"),
        (new(Q_A, 0), r"has shape \[0\]; expected \[4, 32\]: save the adapter again, after its parts are gathered"),
        (new(Q_A, 4, 32, 1), r"has shape \[4, 32, 1\]; expected \[4, 32\]: save the adapter again$"),
        (new(Q_A, 0, 32), r"has shape \[0, 32\]; expected"),
        (new(PREFIX + "q_proj.lora_magnitude_vector.weight", 32), "has magnitudes of weights .DoRA."),
        (new(PREFIX + "q_proj.lora_B.bias", 32), "is a bias"),
        (new(PREFIX + "q_proj.bias", 32), "is a bias"),
        (new("base_model.model.model.embed_tokens.token_adapter.trainable_tokens_delta", 2, 32), "single tokens"),
        (new("something", 32), "is not a tensor of a LoRA adapter: expected names such as base_model.model"),
        (new(PREFIX + "q_proj.lora_C.weight", 32), "is none of lora_A and lora_B"),
        (new("base_model.model." + "a" * 1000 + ".lora_A.weight", 32), "is not a tensor|is none of"),
        (new("base_model.model.é.lora_A.weight", 32), "is none of"),
        (new("base_model.model.model.norm.weight", 32), "replaces weights that adapters may not replace"),
        (new("base_model.model.score.modules_to_save.weight", 2, 32), "replaces weights that adapters may not replace"),
        (new(PREFIX + "q_proj.base_layer.weight", 32, 32), "replaces weights that adapters may not replace"),
        (new("base_model.model.lm_head.weight", 90, 32), r"has shape \[90, 32\], but .* lm_head it must be \[96, 32\]"),
        (new("base_model.model.lm_head.weight", 97, 32), r"if tokens were added to that base, merge the adapter"),
        (new("base_model.model.lm_head.weight", 0), r"has shape \[0\]; expected \[96, 32\]: .* parts are gathered"),
    ],
)
def test_tensors_that_fit_nowhere(
    changed: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]], problem: str, adapter: Path
) -> None:
    change(adapter, changed)
    refused(adapter, problem)


def renamed(old: str, now: str) -> Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]:
    return lambda tensors: {name.replace(old, now): each for name, each in tensors.items()}


def test_layers_that_the_model_lacks(adapter: Path) -> None:
    change(adapter, renamed("layers.0.", "layers.7."))
    text = refused(adapter, r"is for 'model.layers.7.self_attn.[qo]_proj', which is no layer of this model")
    assert "there are model.layers.0.self_attn." in text


def test_towers_take_no_adapters(adapter: Path) -> None:
    change(adapter, renamed("model.layers", "model.visual"))
    targets = replace(TARGETS, rename=lambda name: None if ".visual." in name else name)
    refused(adapter, "outside of the language model", targets)


def test_wrapped_layers_are_of_other_adapters(adapter: Path) -> None:
    change(adapter, renamed("q_proj.", "q_proj.base_layer."))
    refused(adapter, "no layer of this model that takes adapters")


def test_limits_name_their_flag(adapter: Path) -> None:
    refused(
        adapter, "rank 4, above the limit of 3: start the engine with --max-lora-rank 4", limits=LoRALimits(3, 10**9)
    )
    needed = open_adapter(adapter, TARGETS, LIMITS).nbytes
    open_adapter(adapter, TARGETS, LoRALimits(4, needed))
    refused(adapter, f"needs {needed} bytes, above the limit of {needed - 1}", limits=LoRALimits(4, needed - 1))


def test_a_saved_head_that_is_lost(adapter: Path) -> None:
    config = json.loads((adapter / CONFIG).read_text())
    (adapter / CONFIG).write_text(json.dumps(config | {"modules_to_save": ["lm_head"]}))
    refused(adapter, "has 'lm_head' in modules_to_save, and adapter_model.safetensors has no tensor of it")


@pytest.fixture(scope="module")
def sound(
    saved: tuple[dict[str, Any], dict[str, torch.Tensor]], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[str, bytes]]:
    directory = tmp_path_factory.mktemp("mutated")
    config, tensors = saved
    (directory / CONFIG).write_text(json.dumps({name: value for name, value in config.items() if value}))
    save_file(tensors, directory / WEIGHTS)
    return directory, {name: (directory / name).read_bytes() for name in (CONFIG, WEIGHTS)}


@settings(deadline=None, max_examples=150)
@given(data=st.data())
def test_mutated_files_are_read_or_refused(data: st.DataObject, sound: tuple[Path, dict[str, bytes]]) -> None:
    directory, contents = sound
    for name, content in contents.items():
        (directory / name).write_bytes(content)
    name = data.draw(st.sampled_from([CONFIG, WEIGHTS]))
    changed = bytearray(contents[name][:1200])
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(changed)))
        changed[place : place + data.draw(st.integers(0, 3))] = data.draw(
            st.sampled_from([b"", b"9", b"-", b"[", b'"', b"\xff"])
        )
    (directory / name).write_bytes(changed + contents[name][1200:])
    with suppress(AdapterError):
        read_adapter(directory, TARGETS, LIMITS)


# --- experts


@pytest.fixture
def experts(tmp_path: Path) -> tuple[Path, LoRATargets]:
    model = tiny_model("qwen3_moe", moe_intermediate_size=16, num_hidden_layers=1)
    targets = targets_of(model)  # 2 · 16 gates and ups, of 32 inputs
    save_adapter(model, tmp_path, target_modules=[], target_parameters=["gate_up_proj"])
    return tmp_path, targets


def configure(directory: Path, **fields: object) -> None:
    config = json.loads((directory / CONFIG).read_text())
    (directory / CONFIG).write_text(json.dumps(config | fields))


def test_experts_of_parameters_that_nothing_names(experts: tuple[Path, LoRATargets]) -> None:
    directory, targets = experts
    configure(directory, target_parameters=["down_proj_bias"])
    refused(
        directory,
        "does not say for which: expected target_parameters with .*experts.gate_up_proj, .*down_proj",
        targets,
    )


def test_sides_of_square_parameters_depend_on_the_version(experts: tuple[Path, LoRATargets]) -> None:
    directory, targets = experts
    open_adapter(directory, targets, LIMITS)
    for version in ("0.18.0", "0.19.1", None):
        configure(directory, peft_version=version)
        refused(directory, "whose versions disagree on which side of a square parameter A is", targets)


def test_experts_that_the_model_lacks(adapter: Path) -> None:
    model = tiny_model("qwen3_moe", num_hidden_layers=1)
    for module in ("3.gate_proj", "01.gate_proj", "-1.up_proj", "x.up_proj", "0.w1", "0.gate_proj.x"):
        name = f"base_model.model.model.layers.0.mlp.experts.{module}"
        save_file(
            {f"{name}.lora_A.weight": torch.zeros(4, 32), f"{name}.lora_B.weight": torch.zeros(24, 4)},
            adapter / WEIGHTS,
        )
        refused(adapter, "no layer of this model that takes adapters", targets_of(model))


def test_experts_together_and_one_by_one(experts: tuple[Path, LoRATargets]) -> None:
    directory, targets = experts
    name = "base_model.model.model.layers.0.mlp.experts.1.down_proj.lora_"
    change(
        directory,
        lambda tensors: tensors | {f"{name}A.weight": torch.zeros(4, 16), f"{name}B.weight": torch.zeros(32, 4)},
    )
    refused(directory, "two tensors for one place", targets)
