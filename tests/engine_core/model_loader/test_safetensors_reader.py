"""Files are read strictly: what is missing, too much, misshaped or damaged is an error naming it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from safetensors.torch import save_file

from engine_core.errors import CheckpointError
from engine_core.model_loader import safetensors_reader as stored
from engine_core.model_loader.expected import ExpectedTensors
from engine_core.model_loader.safetensors_reader import SafetensorsWeights, find_tensors

CPU = torch.device("cpu")
TENSORS = {"a.weight": torch.randn(4, 3), "b.weight": torch.randn(5).to(torch.float16), "c.bias": torch.randn(2, 2)}
SHAPES = {name: tuple(tensor.shape) for name, tensor in TENSORS.items()}


def save_sharded(directory: Path, shards: dict[str, list[str]], weight_map: dict[str, str] | None = None) -> None:
    for shard, names in shards.items():
        save_file({name: TENSORS[name] for name in names}, directory / shard)
    found = {name: shard for shard, names in shards.items() for name in names}
    index = {"metadata": {}, "weight_map": found if weight_map is None else weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))


def open_weights(directory: Path, **changes: object) -> SafetensorsWeights:
    """``changes``: fields of ``ExpectedTensors``, or further arguments."""
    expected = {field.name: changes.pop(field.name) for field in fields(ExpectedTensors) if field.name in changes}
    arguments = {"dtype": torch.float32, "device": CPU} | changes
    return SafetensorsWeights(directory, ExpectedTensors(**{"shapes": SHAPES} | expected), **arguments)


@pytest.mark.parametrize("mapped_at_once", [stored._MAPPED_AT_ONCE, 0])
@pytest.mark.parametrize("sharded", [False, True])
def test_reading(sharded: bool, mapped_at_once: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored, "_MAPPED_AT_ONCE", mapped_at_once)
    if sharded:
        save_sharded(tmp_path, {"x.safetensors": ["a.weight"], "y.safetensors": ["b.weight", "c.bias"]})
    else:
        save_file(TENSORS, tmp_path / "model.safetensors")
    told: list[tuple[int, int]] = []
    weights = open_weights(tmp_path, on_progress=lambda done, total: told.append((done, total)))
    for name, tensor in TENSORS.items():
        taken = weights.take(name)
        assert taken.dtype == torch.float32
        assert torch.equal(taken, tensor.float())
    assert told == [(48, 74), (58, 74), (74, 74)]


def test_numbers_that_begin_at_any_byte(tmp_path: Path) -> None:
    """Nothing says how long a file's header is: what follows it may lie across the boundaries of numbers."""
    tensors = {"x": torch.randn(3, 4), "none": torch.empty(0, 4), "one": torch.tensor(2.5), "y": torch.randn(5)}
    for filling in range(8):
        header, data = {}, b""
        for name, tensor in tensors.items():
            content = tensor.numpy().tobytes()
            offsets = [len(data), len(data) + len(content)]
            header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": offsets}
            data += content
        text = json.dumps(header).encode() + b" " * filling
        (tmp_path / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
        weights = open_weights(tmp_path, shapes={name: tuple(tensor.shape) for name, tensor in tensors.items()})
        for name, tensor in tensors.items():
            assert torch.equal(weights.take(name), tensor)


def test_several_names_are_joined_by_rows(tmp_path: Path) -> None:
    first, second = torch.randn(3, 4).to(torch.float16), torch.randn(2, 4).to(torch.bfloat16)
    save_file({"x": first, "y": second, "z": torch.ones(6, 4)}, tmp_path / "model.safetensors")
    weights = open_weights(tmp_path, shapes={"x": (3, 4), "y": (2, 4), "z": (6, 4)}, dtype=torch.bfloat16)
    assert torch.equal(weights.take("x", "y"), torch.cat([first.to(torch.bfloat16), second]))
    assert torch.equal(weights.take("z"), torch.ones(6, 4).to(torch.bfloat16))
    assert torch.equal(weights.take("y", "x"), torch.cat([second, first.to(torch.bfloat16)]))


def test_every_disagreement_with_the_configuration_is_named(tmp_path: Path) -> None:
    save_file(TENSORS, tmp_path / "model.safetensors")
    shapes = {"a.weight": (3, 4), "c.bias": (2, 2), "d.weight": (1,), "e.weight": (1,)}
    with pytest.raises(CheckpointError) as caught:
        open_weights(tmp_path, shapes=shapes)
    message = str(caught.value)
    assert "2 missing (d.weight, e.weight)" in message
    assert "1 unexpected (b.weight)" in message
    assert "1 mis-shaped (a.weight is [4, 3], expected [3, 4])" in message


def test_many_names_are_counted(tmp_path: Path) -> None:
    save_file(TENSORS, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"20 missing \(t00, t01, t02, t03, t04 and 15 more\)"):
        open_weights(tmp_path, shapes=SHAPES | {f"t{number:02}": (1,) for number in range(20)})


def test_tensors_by_other_names(tmp_path: Path) -> None:
    save_file({"x.a": TENSORS["a.weight"], "b.weight": TENSORS["b.weight"]}, tmp_path / "model.safetensors")
    names = {"x.a": "a.weight"}
    shapes = {name: SHAPES[name] for name in ("a.weight", "b.weight")}
    weights = open_weights(tmp_path, shapes=shapes, renamed=lambda name: names.get(name, name))
    assert torch.equal(weights.take("a.weight"), TENSORS["a.weight"])
    assert torch.equal(weights.take("b.weight"), TENSORS["b.weight"].float())
    save_file(TENSORS | {"x.a": torch.ones(4, 3)}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"tensors that are there twice, under two names: a\.weight"):
        open_weights(tmp_path, renamed=lambda name: names.get(name, name))


def test_no_weights(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"has neither model\.safetensors nor model\.safetensors\.index\.json"):
        find_tensors(tmp_path)


@pytest.mark.parametrize("size", [0, 5, 40, -30, -1])
def test_truncated_file(size: int, tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    save_file(TENSORS, file)
    file.write_bytes(file.read_bytes()[:size])
    with pytest.raises(CheckpointError, match=r"model\.safetensors is damaged"):
        find_tensors(tmp_path)


def test_truncated_shard_is_the_one_named(tmp_path: Path) -> None:
    save_sharded(tmp_path, {"x.safetensors": ["a.weight"], "y.safetensors": ["b.weight", "c.bias"]})
    file = tmp_path / "y.safetensors"
    file.write_bytes(file.read_bytes()[:-3])
    with pytest.raises(CheckpointError, match=r"y\.safetensors is damaged"):
        find_tensors(tmp_path)


OTHER_TYPES = {
    "BOOL": torch.bool,
    "C64": torch.complex64,
    "F8_E4M3": torch.float8_e4m3fn,
    "I8": torch.int8,
    "I64": torch.int64,
    "U32": torch.uint32,
}


@pytest.mark.parametrize("type_name", OTHER_TYPES)
def test_types_other_than_floats_are_refused_where_they_are_needed(type_name: str, tmp_path: Path) -> None:
    other = {"a.mask": torch.zeros(2, dtype=OTHER_TYPES[type_name])}
    save_file(TENSORS | other, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=rf"a\.mask is of type {type_name}; expected one of F64, F32, BF16, F16"):
        open_weights(tmp_path, shapes=SHAPES | {"a.mask": (2,)})
    weights = open_weights(tmp_path, is_redundant=lambda name: name == "a.mask")
    assert torch.equal(weights.take("a.weight"), TENSORS["a.weight"])


def test_bytes_are_no_numbers(tmp_path: Path) -> None:
    save_file({"a.weight": torch.zeros(2, dtype=torch.uint8)}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"a\.weight is of type U8; expected one of F64, F32, BF16, F16"):
        open_weights(tmp_path, shapes={"a.weight": (2,)}).take("a.weight")


def test_a_type_that_safetensors_does_not_know(tmp_path: Path) -> None:
    header = json.dumps({"a.weight": {"dtype": "F7", "shape": [1], "data_offsets": [0, 1]}}).encode()
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"\0")
    with pytest.raises(
        CheckpointError, match=r"model\.safetensors is damaged or not a safetensors file \(.*F7.*download it"
    ):
        find_tensors(tmp_path)


def test_a_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_file(TENSORS, tmp_path / "model.safetensors")
    monkeypatch.setattr(Path, "open", Mock(side_effect=PermissionError(13, "Permission denied")))
    with pytest.raises(CheckpointError, match=r"model\.safetensors cannot be read: Permission denied$"):
        find_tensors(tmp_path)


@pytest.mark.parametrize("shard", ["gone.safetensors", "../x.safetensors", "/etc/passwd", ".", "", "x" * 5000, "x\0"])
def test_index_names_what_is_not_beside_it(shard: str, tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    save_file(TENSORS, tmp_path / "x.safetensors")
    save_sharded(inner, {"x.safetensors": ["a.weight"]}, {"a.weight": "x.safetensors", "b.weight": shard})
    shown = re.escape(repr(shard)) if len(shard) < 100 else "'x+ … x+'"  # a long one loses its middle
    with pytest.raises(CheckpointError, match=f"names {shown}, which is not a file beside it"):
        find_tensors(inner)


def test_index_names_a_tensor_that_is_elsewhere_or_nowhere(tmp_path: Path) -> None:
    shards = {"x.safetensors": ["a.weight"], "y.safetensors": ["b.weight"]}
    places = {"a.weight": "y.safetensors", "b.weight": "y.safetensors", "c.bias": "x.safetensors"}
    save_sharded(tmp_path, shards, places)
    with pytest.raises(CheckpointError, match=r"not in the file it names: a\.weight, c\.bias"):
        find_tensors(tmp_path)


def test_tensor_in_two_shards(tmp_path: Path) -> None:
    save_sharded(tmp_path, {"x.safetensors": ["a.weight", "c.bias"], "y.safetensors": ["a.weight"]})
    index = {"weight_map": {"c.bias": "x.safetensors", "a.weight": "y.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=r"in more than one file: a\.weight"):
        find_tensors(tmp_path)


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "{}", '{"weight_map": []}', '{"weight_map": {}}', '{"weight_map": {"a": 1}}', b"\xff", "[" * 10**5],
)
def test_index_that_is_none(content: str | bytes, tmp_path: Path) -> None:
    content = content.encode() if isinstance(content, str) else content
    (tmp_path / "model.safetensors.index.json").write_bytes(content)
    with pytest.raises(CheckpointError, match="is not an index of safetensors files"):
        find_tensors(tmp_path)


@pytest.mark.parametrize(
    "change", [Path.unlink, lambda file: file.write_bytes(file.read_bytes()[:-4])], ids=["vanishes", "shrinks"]
)
def test_file_that_changes_after_it_was_checked(change: Callable[[Path], object], tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    save_file({"a": torch.ones(4), "b": torch.ones(4)}, file)
    weights = open_weights(tmp_path, shapes={"a": (4,), "b": (4,)})
    change(file)
    with pytest.raises(CheckpointError, match=r"model\.safetensors: cannot read b"):
        weights.take("b")
