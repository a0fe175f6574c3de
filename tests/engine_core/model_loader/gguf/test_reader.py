"""Files are read strictly: what is missing, too long, unknown or out of place is one error naming it."""

from __future__ import annotations

import array
import os
import random
import struct
from contextlib import suppress
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from typing import Any

import gguf
import numpy as np
import pytest
from gguf.constants import GGML_QUANT_SIZES

from engine_core.errors import CheckpointError
from engine_core.model_loader.gguf.config import describe
from engine_core.model_loader.gguf.metadata import Metadata
from engine_core.model_loader.gguf.reader import read_gguf
from engine_core.model_loader.gguf.types import TYPES
from tests.engine_core.model_loader.gguf.damaged import damage


def string(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def field(name: str, kind: int, value: bytes) -> bytes:
    return string(name.encode()) + struct.pack("<I", kind) + value


def tensor(name: str, shape: tuple[int, ...] = (4,), kind: int = 0, offset: int = 0) -> bytes:
    return string(name.encode()) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


def file_of(
    path: Path,
    fields: tuple[bytes, ...] = (),
    tensors: tuple[bytes, ...] = (),
    data: bytes = bytes(64),
    version: int = 3,
    counts: tuple[int, int] | None = None,
) -> Path:
    counted = (len(tensors), len(fields)) if counts is None else counts
    header = b"GGUF" + struct.pack("<IQQ", version, *counted) + b"".join(fields) + b"".join(tensors)
    path.write_bytes(header + bytes(-len(header) % 32) + data)
    return path


def small_model(path: Path, **changes: Any) -> Path:
    """A file as the ``gguf`` package writes it, with values of every kind."""
    writer = gguf.GGUFWriter(path, "llama", **changes)
    for name in ("block_count", "context_length", "embedding_length", "feed_forward_length"):
        writer.add_uint32(f"llama.{name}", 1 if name == "block_count" else 32)
    writer.add_uint32("llama.attention.head_count", 2)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_bool("flag", True)
    writer.add_int8("negative", -3)
    writer.add_float64("double", 0.1)
    writer.add_array("numbers", [1, 2, 3])
    writer.add_array("flags", [True, False])
    writer.add_array("tokenizer.ggml.tokens", ["a", "é", "<|im_end|>"])
    writer.add_array("tokenizer.ggml.token_type", [1, 1, 3])
    rng = np.random.default_rng(0)
    writer.add_tensor("token_embd.weight", rng.standard_normal((3, 32)).astype(np.float32))
    writer.add_tensor("blk.0.attn_q.weight", rng.standard_normal((32, 32)).astype(np.float16))
    packed = gguf.quants.quantize(rng.standard_normal((32, 32)).astype(np.float32), gguf.GGMLQuantizationType.Q4_0)
    writer.add_tensor("blk.0.ffn_up.weight", packed, raw_dtype=gguf.GGMLQuantizationType.Q4_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_types_are_those_of_ggml() -> None:
    assert {number: (kept.name, kept.block_size, kept.block_bytes) for number, kept in TYPES.items()} == {
        int(kind): (kind.name, *sizes) for kind, sizes in GGML_QUANT_SIZES.items()
    }


def test_reading_what_another_has_written(tmp_path: Path) -> None:
    path = small_model(tmp_path / "model.gguf")
    read, expected = read_gguf(path), gguf.GGUFReader(path)
    assert {
        name: value for name, value in read.metadata.items() if name not in ("numbers", "tokenizer.ggml.token_type")
    } == {
        "general.architecture": "llama",
        "llama.block_count": 1,
        "llama.context_length": 32,
        "llama.embedding_length": 32,
        "llama.feed_forward_length": 32,
        "llama.attention.head_count": 2,
        "llama.attention.layer_norm_rms_epsilon": float(np.float32(1e-5)),
        "flag": True,
        "negative": -3,
        "double": 0.1,
        "flags": [True, False],
        "tokenizer.ggml.tokens": ["a", "é", "<|im_end|>"],
    }
    assert read.metadata["numbers"] == array.array("i", [1, 2, 3])
    assert {
        name: (each.type.name, list(each.shape[::-1]), each.offset, each.nbytes) for name, each in read.tensors.items()
    } == {
        each.name: (each.tensor_type.name, each.shape.tolist(), each.data_offset, each.n_bytes)
        for each in expected.tensors
    }


def test_split_files(tmp_path: Path) -> None:
    small_model(tmp_path / "whole.gguf")
    small_model(tmp_path / "model.gguf", split_max_tensors=1)
    parts = sorted(tmp_path.glob("model-*.gguf"))
    assert [part.name for part in parts] == [f"model-0000{number}-of-00003.gguf" for number in (1, 2, 3)]
    split = read_gguf(parts[0])
    assert {each.name: (each.shape, each.file) for each in split.tensors.values()} == {
        name: (each.shape, part)
        for (name, each), part in zip(read_gguf(tmp_path / "whole.gguf").tensors.items(), parts, strict=True)
    }
    with pytest.raises(
        CheckpointError, match=r"model-00002-of-00003.gguf is one of 3 files: give the first, model-00001"
    ):
        read_gguf(parts[1])
    parts[1].rename(tmp_path / "other.gguf")
    with pytest.raises(CheckpointError, match=r"model-00002-of-00003.gguf cannot be read: No such file"):
        read_gguf(parts[0])
    parts[2].rename(parts[1])
    with pytest.raises(CheckpointError, match=r"split.no and split.count are not those of file 2 of 3"):
        read_gguf(parts[0])


U32, STRING, LIST = 4, 8, 9
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "version": ({"version": 1}, "has version 1 of GGUF: expected 2 or 3"),
    "big-endian": ({"version": 3 << 24}, "is big-endian"),
    "fields": ({"counts": (0, 2**40)}, "1099511627776 fields of metadata: at most"),
    "tensors": ({"counts": (2**63, 0)}, "9223372036854775808 tensors: at most"),
    "end": (
        {"counts": (0, 2), "fields": (field("a", U32, b""),), "data": b""},
        "field 1 of the metadata has an empty name",
    ),
    "no name": ({"fields": (field("", 7, b"\1"),)}, "field 0 of the metadata has an empty name"),
    "long name": ({"fields": (string(b"x" * 2000),)}, "field 0 of the metadata has a string of 2000 bytes"),
    "same name": ({"fields": (field("a", U32, bytes(4)),) * 2}, "field 1 .* has the name 'a' for a second time"),
    "unknown type of a value": ({"fields": (field("a", 13, bytes(4)),)}, "a has a value of type 13, which is unknown"),
    "boolean": ({"fields": (field("a", 7, b"\2"),)}, "a has the boolean 2: 0 or 1"),
    "text": ({"fields": (field("a", STRING, string(b"\xff")),)}, "a has a string that is not UTF-8"),
    "long text": ({"fields": (field("a", STRING, struct.pack("<Q", 2**60)),)}, "a has a string of 1152921504606846976"),
    "long list": (
        {"fields": (field("a", LIST, struct.pack("<IQ", U32, 2**62)),)},
        "a list of .* numbers, more than fit",
    ),
    "many booleans": (
        {"fields": (field("a", LIST, struct.pack("<IQ", 7, 2**20 + 1) + bytes(2**20 + 1)),)},
        "a list of 1048577 booleans: expected at most 1048576",
    ),
    "many texts": (
        {"fields": (field("a", LIST, struct.pack("<IQ", STRING, 2**61)),)},
        "a list of .* strings, more than",
    ),
    "list of lists": ({"fields": (field("a", LIST, struct.pack("<IQ", LIST, 1)),)}, "a list of values of type 9"),
    "long text in a list": (
        {"fields": (field("a", LIST, struct.pack("<IQ", STRING, 1) + struct.pack("<Q", 2**63)),)},
        "a has a string, number 0 of a list, that goes on",
    ),
    "alignment": ({"fields": (field("general.alignment", U32, struct.pack("<I", 24)),)}, "24: a power of two"),
    "no alignment": ({"fields": (field("general.alignment", U32, bytes(4)),)}, "general.alignment has 0"),
    "dimensions": ({"tensors": (tensor("x", (1, 1, 1, 1, 1)),)}, "tensor x has 5 dimensions: from 1 to 4"),
    "no dimension": ({"tensors": (tensor("x", ()),)}, "tensor x has 0 dimensions"),
    "empty": ({"tensors": (tensor("x", (4, 0)),)}, r"tensor x has the shape \[0, 4\]: no dimension may be 0"),
    "unknown type": ({"tensors": (tensor("x", (4,), 5),)}, "tensor x has type 5: expected one of"),
    "part of a block": ({"tensors": (tensor("x", (40, 2), 2),)}, "rows of 40: Q4_0 has blocks of 32 numbers"),
    "beyond the file": ({"tensors": (tensor("x", (17,)),)}, "tensor x has 68 bytes from .* but the file ends at"),
    "too many numbers": ({"tensors": (tensor("x", (2**63, 2**63)),)}, "but the file ends at"),
    "far offset": ({"tensors": (tensor("x", (4,), 0, 2**63),)}, "but the file ends at"),
    "unaligned": ({"tensors": (tensor("x", (4,), 0, 16),)}, "tensor x has the offset 16: a multiple of 32"),
    "same tensor": ({"tensors": (tensor("x"), tensor("x"))}, "the name 'x' for a second time"),
    "overlap": ({"tensors": (tensor("x", (9,)), tensor("y", (4,), 0, 32))}, "the tensors x and y overlap"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_files(case: str, tmp_path: Path) -> None:
    parts, message = BAD[case]
    path = file_of(tmp_path / "bad.gguf", **parts)
    with pytest.raises(CheckpointError, match=message) as raised:
        read_gguf(path)
    assert str(path) in str(raised.value)


def test_files_that_end_early(tmp_path: Path) -> None:
    content = small_model(tmp_path / "model.gguf").read_bytes()
    path = tmp_path / "short.gguf"
    for size in range(4, len(content), 61):
        path.write_bytes(content[:size])
        with pytest.raises(CheckpointError, match=r"short\.gguf: .*(ends|more than fit|a string)"):
            read_gguf(path)


def test_what_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "empty.gguf").touch()
    with pytest.raises(CheckpointError, match=r"empty\.gguf is not a GGUF file"):
        read_gguf(tmp_path / "empty.gguf")
    os.mkfifo(tmp_path / "pipe.gguf")
    with pytest.raises(CheckpointError, match=r"pipe\.gguf is not a regular file"):
        read_gguf(tmp_path / "pipe.gguf")
    (tmp_path / "pointer.gguf").write_text("version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(CheckpointError, match="git lfs pull"):
        read_gguf(tmp_path / "pointer.gguf")


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.wide)])
def test_damaged_files_cost_one_error(seed: int, tmp_path: Path) -> None:
    """20,000 of them with ``--wide``. Reading reads no further than the file, or the process would end by a signal."""
    content = small_model(tmp_path / "model.gguf").read_bytes()
    rng, path, count = random.Random(seed), tmp_path / "damaged.gguf", 20_000 if seed else 100
    refused: list[str] = []
    before = getrusage(RUSAGE_SELF).ru_maxrss
    header = len(content) - 3 * 32 * 4 - 32 * 32 * 2 - 32 * 18
    for _ in range(count):
        path.write_bytes(damage(rng, content, header))
        size = path.stat().st_size
        try:
            read = read_gguf(path)
        except CheckpointError as error:
            refused.append(str(error))
            continue
        for each in read.tensors.values():
            assert 0 < each.offset < each.offset + each.nbytes <= size, each
        with suppress(CheckpointError):
            describe(read)
    assert count / 2 < len(refused) < count
    assert all(str(path) in error for error in refused)
    assert getrusage(RUSAGE_SELF).ru_maxrss < before + 2**17  # in KiB


def test_a_long_list_where_a_number_is_expected_is_shown_in_part(tmp_path: Path) -> None:
    named = field("general.architecture", STRING, string(b"llama"))
    numbers = field("llama.block_count", LIST, struct.pack("<IQ", U32, 10**6) + bytes(4 * 10**6))
    metadata = Metadata.of(read_gguf(file_of(tmp_path / "x.gguf", fields=(named, numbers))))
    for read in (lambda: metadata.integer("block_count"), lambda: metadata.of_layers("block_count", 4)):
        with pytest.raises(
            CheckpointError, match=r"llama.block_count=\[0, 0.*: expected at most 65536 values"
        ) as caught:
            read()
        assert len(str(caught.value)) < 400
