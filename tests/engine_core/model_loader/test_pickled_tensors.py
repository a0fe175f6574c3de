"""Pickles in PyTorch's files are followed, never executed: whatever else they do is one error."""

from __future__ import annotations

import os
import random
import re
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from resource import RUSAGE_SELF, getrusage

import pytest
import torch

from engine_core.errors import CheckpointError
from engine_core.model_loader.torch_reader import torch_tensors

WHOLE = torch.arange(60.0).view(5, 12)
VIEWS = {
    "whole": WHOLE,
    "rows": WHOLE[1:3],
    "columns": WHOLE[:, 2:5],
    "turned": WHOLE.t(),
    "permuted": torch.arange(24, dtype=torch.float16).view(2, 3, 4).permute(2, 0, 1),
    "parameter": torch.nn.Parameter(torch.arange(6.0).bfloat16()),
    "one": torch.tensor(2.5, dtype=torch.float64),
    "none": torch.empty(0, 4),
}
CODES = {
    "eighths": torch.arange(5.0).to(torch.float8_e4m3fn),
    "codes": torch.arange(-4, 4, dtype=torch.int32).view(2, 4),
    "wide": torch.arange(3),
}


def save(file: Path, tensors: object, **options: object) -> Path:
    torch.save(tensors, file, **options)
    return file


class Reduced:
    """An object that is made by a call when it is unpickled."""

    def __init__(self, function: Callable[..., object], *arguments: object) -> None:
        self._made = function, arguments

    def __reduce__(self) -> tuple[object, ...]:
        return self._made


def archive(file: Path, pickled: bytes, compression: int = zipfile.ZIP_STORED, **entries: bytes) -> Path:
    """An archive as torch.save writes it, with any pickle and entries."""
    inside = {"data.pkl": pickled} | entries
    return zipped(file, compression, **{f"archive/{name}": content for name, content in inside.items()})


def zipped(file: Path, compression: int = zipfile.ZIP_STORED, **entries: bytes) -> Path:
    with zipfile.ZipFile(file, "w", compression) as written:
        for name, content in entries.items():
            written.writestr(name, content)
    return file


def tensor(
    count: int = 4,
    shape: bytes = b"K\x04\x85",
    strides: bytes = b"K\x01\x85",
    offset: bytes = b"K\x00",
    state: bytes = b"",
) -> bytes:
    """A pickle of one tensor."""
    storage = b"(U\x07storagectorch\nFloatStorage\nU\x010U\x03cpuJ" + struct.pack("<i", count) + b"tQ"
    call = b"(" + storage + offset + shape + strides + b"\x89ccollections\nOrderedDict\n)R" + state + b"tR"
    return b"\x80\x02}U\x01xctorch._utils\n_rebuild_tensor_v2\n" + call + b"s."


def long(number: int) -> bytes:
    return b"\x8a\x09" + number.to_bytes(9, "little", signed=True)


FOUR = torch.zeros(4).numpy().tobytes()
EXECUTED = "which no tensor needs and nothing of which was executed"
NESTED = b")" + b"\x85" * 200_000
HOSTILE = {
    "system": (b"\x80\x02cposix\nsystem\nU\x05touch\x85R.", f"refers to posix.system, {EXECUTED}"),
    "eval": (b"\x80\x02}U\x01xc__builtin__\neval\nU\x011\x85Rs.", f"refers to __builtin__.eval, {EXECUTED}"),
    "attributes": (b"\x80\x02c__builtin__\ngetattr\nctorch\nload\nU\x01x\x86R.", "refers to __builtin__.getattr, "),
    "function of torch": (b"\x80\x02ctorch\nhub.load\n)R.", f"refers to torch.hub.load, {EXECUTED}"),
    "function that torch allows": (b"\x80\x02ctorch._utils\n_rebuild_wrapper_subclass\n)R.", EXECUTED),
    "dotted": (b"\x80\x02ctorch._utils\n_rebuild_tensor_v2.__globals__\n.", EXECUTED),
    "name from the stack": (b"\x80\x04\x8c\x05posix\x8c\x06system\x93.", "the operation SHORT_BINUNICODE"),
    "object": (b"\x80\x02ccollections\nOrderedDict\n)\x81.", "the operation NEWOBJ in its pickle"),
    "extension": (b"\x80\x02\x82\x01.", "the operation EXT1 in its pickle"),
    "storage called": (b"\x80\x02ctorch\nFloatStorage\nJ\xff\xff\xff\x7f\x85R.", "calls torch.FloatStorage with 1"),
    "attributes of a function": (b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n}b.", "a damaged pickle"),
    "call of a dictionary": (b"\x80\x02}U\x01x\x85R.", "a damaged pickle"),
    "dictionary of pairs": (b"\x80\x02ccollections\nOrderedDict\n]\x85R.", "calls collections.OrderedDict with 1"),
    "nested": (b"\x80\x02" + NESTED + b".", "holds one tuple, not a dictionary"),
    "nested key": (b"\x80\x02}" + NESTED + b"Ns.", "has a tuple as the name of an entry"),
    "nested values": (b"\x80\x02}U\x01x" + b"}U\x01x" * 150_000 + b"N" + b"s" * 150_001 + b".", "'x', which is a dict"),
    "nested storage": (b"\x80\x02(" + NESTED + b"ctorch\nFloatStorage\nU\x010U\x03cpuK\x04tQ.", "a damaged pickle"),
    "itself": (b"\x80\x02]q\x00h\x00a.", "holds one list"),
    "laughs": (b"\x80\x02)q\x00" + b"h\x00h\x00\x86q\x00" * 1000 + b".", "holds one tuple"),
    "memo": (b"\x80\x02Nr\xff\xff\xff\x7f.", "holds one nonetype"),
    "memo that is empty": (b"\x80\x02h\x07.", "a damaged pickle (at or after BINGET at byte 2)"),
    "operations": (b"\x80\x02" + b"N" * 2**20 + b".", "has more than 1048576 operations"),
    "long text": (b"\x80\x02X\xff\xff\xff\xff.", "a damaged pickle"),
    "long number": (b"\x80\x02\x8b\xff\xff\xff\x7f.", "a damaged pickle"),
    "unknown operation": (b"\x80\x02\xff.", "a damaged pickle"),
    "no end": (b"\x80\x02}", "a damaged pickle"),
    "two pickles": (b"\x80\x02}.}.", "a damaged pickle"),
    "nothing on the stack": (b"\x80\x02.", "a damaged pickle"),
    "no mark": (b"\x80\x02t.", "a damaged pickle"),
    "odd items": (b"\x80\x02}(U\x01xu.", "a damaged pickle"),
    "empty": (b"\x80\x02}.", "holds no tensors"),
    "past the end": (tensor(offset=b"K\x01"), "a tensor of 4 numbers that is not within its storage of 4"),
    "wide strides": (tensor(strides=b"K\x02\x85"), "a tensor of 4 numbers that is not within"),
    "expanded": (
        tensor(shape=long(2**40) + b"\x85", strides=b"K\x00\x85"),
        "a tensor of 1099511627776 numbers that is not within its storage of 4",
    ),
    "huge": (tensor(shape=long(2**62) + b"\x85"), "that is not within its storage of 4"),
    "too huge": (tensor(shape=long(2**63) + b"\x85"), "has a negative size or one of more than"),
    "negative strides": (tensor(strides=long(-1) + b"\x85"), "has a negative size"),
    "negative offset": (tensor(offset=long(-4)), "has a negative size"),
    "dimensions": (tensor(shape=b"(" + b"K\x01" * 70 + b"t"), "has a tensor of 70 dimensions: expected at most 64"),
    "other dimensions": (tensor(strides=b"K\x01K\x01\x86"), "a damaged pickle"),
    "sizes that are no numbers": (tensor(shape=b"\x88\x85"), "a damaged pickle"),
    "many arguments": (tensor(state=b"N" * 100), "calls torch._utils._rebuild_tensor_v2 with 106 arguments"),
    "conjugated": (tensor(state=b"}U\x04conj\x88s"), "to be negated or conjugated"),
    "storage of another size": (
        tensor(count=5),
        "has 16 bytes for a storage of 5 numbers in torch.float32, which take",
    ),
    "storage without bytes": (tensor().replace(b"U\x010", b"U\x017"), "has no entry data/7"),
    "path of a storage": (tensor().replace(b"U\x010", b"U\x07../x/.."), "has no entry data/../x/.."),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_pickle_is_one_error_and_executes_nothing(name: str, tmp_path: Path) -> None:
    pickled, message = HOSTILE[name]
    file = archive(tmp_path / "x.bin", pickled, **{"data/0": FOUR})
    before = getrusage(RUSAGE_SELF).ru_maxrss
    with pytest.raises(CheckpointError, match=re.escape(message)) as caught:
        torch_tensors(file)
    assert str(caught.value).startswith(f"{file} ")
    assert "\n" not in str(caught.value)
    assert getrusage(RUSAGE_SELF).ru_maxrss < before + 2**18  # in KiB


def test_the_pickle_of_these_tests_is_one_that_torch_reads(tmp_path: Path) -> None:
    file = archive(tmp_path / "x.bin", tensor(), **{"data/0": FOUR, "version": b"3\n"})
    assert list(torch_tensors(file)) == list(torch.load(file, weights_only=True)) == ["x"]


@pytest.mark.parametrize("protocol", [2, 4])
def test_what_torch_would_execute_is_not(protocol: int, tmp_path: Path) -> None:
    marker = tmp_path / "executed"
    file = save(tmp_path / "x.bin", {"x": Reduced(os.mkdir, str(marker))}, pickle_protocol=protocol)
    with pytest.raises(CheckpointError, match=r"refers to posix\.mkdir|which torch\.save does not write"):
        torch_tensors(file)
    assert not marker.exists()
    torch.load(file, weights_only=False)
    assert marker.exists()


def damage(rng: random.Random, content: bytes) -> tuple[bytes, int]:
    """Changed bytes, and how many are changed at most; -1: the length, too."""
    changed, kind = bytearray(content), rng.randrange(6)
    at = rng.randrange(len(content))
    if kind == 0:
        return content[:at], -1
    if kind == 1:
        del changed[at : at + rng.randint(1, 40)]
        return bytes(changed), -1
    if kind == 2:
        changed[at:at] = rng.randbytes(rng.randint(1, 40))
        return bytes(changed), -1
    if kind == 3:  # a size or an offset
        size = rng.choice((2, 4, 8))
        changed[at : at + size] = rng.choice((0, 1, 2**15, 2**31, 2**63 - 1)).to_bytes(8, "little")[:size]
        return bytes(changed[: len(content)]), size
    for _ in range(kind - 3):
        changed[rng.randrange(len(content))] = rng.randrange(256)
    return bytes(changed), kind - 3


@pytest.mark.filterwarnings("ignore:invalid escape sequence")
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.wide)])
def test_damaged_pickles_cost_one_error(seed: int, tmp_path: Path) -> None:
    """Their checksum is right, so every operation is tried with what is not meant for it."""
    with zipfile.ZipFile(save(tmp_path / "model.bin", VIEWS | CODES)) as saved:
        entries = {name.removeprefix("model/"): saved.read(name) for name in saved.namelist()}
    pickled, file = entries.pop("data.pkl"), tmp_path / "damaged.bin"
    rng, count, refused = random.Random(seed), 5_000 if seed else 1_000, list[str]()
    before = getrusage(RUSAGE_SELF).ru_maxrss
    for _ in range(count):
        archive(file, damage(rng, pickled)[0], **entries)
        try:
            found = torch_tensors(file)
        except CheckpointError as error:
            refused.append(str(error))
        else:
            size = file.stat().st_size
            assert all(0 < each.start <= each.start + each.nbytes <= size for each in found.values())
    assert count / 2 < len(refused) < count
    assert all(error.startswith(f"{file} ") for error in refused)
    assert getrusage(RUSAGE_SELF).ru_maxrss < before + 2**16  # in KiB
