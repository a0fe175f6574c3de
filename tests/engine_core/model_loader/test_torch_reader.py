"""PyTorch's files are read as torch.load reads them; nothing of them is executed, and what is damaged is one error."""

from __future__ import annotations

import json
import os
import pickle
import random
import re
import shutil
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from threading import Event

import pytest
import torch

from engine_core.distributed.ranks import Rank
from engine_core.errors import CheckpointError
from engine_core.model_loader.digest import RankDigest, WeightsDigest
from engine_core.model_loader.expected import ExpectedTensors
from engine_core.model_loader.loader import WeightsOnDisk
from engine_core.model_loader.safetensors_reader import SafetensorsWeights, conversion_advice, find_tensors
from engine_core.model_loader.stored_tensor import StoredTensor
from engine_core.model_loader.torch_reader import torch_tensors
from tests.engine_core.distributed.ranks import shared
from tests.engine_core.model_loader.test_pickled_tensors import (
    CODES,
    FOUR,
    VIEWS,
    archive,
    damage,
    save,
    tensor,
    zipped,
)
from tests.engine_core.models.driver import CPU, build_model, load, logits_of, open_at
from tests.engine_core.models.families import configuration
from tests.engine_core.models.tiny_models import CASES, make_model, save_model

IDS = torch.arange(1, 30)


def opened(directory: Path, **changes: object) -> SafetensorsWeights:
    shapes = {name: tensor.shape for name, tensor in find_tensors(directory).items()}
    return SafetensorsWeights(directory, ExpectedTensors(shapes, quantized=True, **changes), torch.float32, CPU)


@pytest.mark.parametrize("tensors", [VIEWS, OrderedDict(VIEWS)], ids=["dict", "OrderedDict"])
def test_every_view_of_a_storage_is_read_as_torch_reads_it(tensors: dict[str, torch.Tensor], tmp_path: Path) -> None:
    file = save(tmp_path / "pytorch_model.bin", tensors)
    weights = opened(tmp_path)
    for name, expected in torch.load(file, weights_only=True).items():
        assert torch.equal(weights.take(name), expected.float()), name
        assert torch.equal(weights.take_float32(name), expected.float()), name
        if expected.ndim > 1 and len(expected):
            assert torch.equal(weights.take_row(name, 1), expected[1].float()), name
            assert torch.equal(weights.take_stored(name, slice(1, 2)), expected[1:2]), name


def test_codes_and_8_bit_numbers_are_read_as_torch_reads_them(tmp_path: Path) -> None:
    save(tmp_path / "pytorch_model.bin", CODES)
    weights = opened(tmp_path)
    for name, expected in CODES.items():
        assert torch.equal(weights.take_stored(name, slice(None)).view(torch.uint8), expected.view(torch.uint8)), name


def test_numbers_of_another_archiver_may_begin_at_any_byte(tmp_path: Path) -> None:
    numbers = torch.randn(4)
    for filling in range(4):
        pickled, content = tensor() + b"", numbers.numpy().tobytes()
        archive(tmp_path / "pytorch_model.bin", pickled, **{"y" * (1 + filling): b"", "data/0": content})
        assert torch.equal(opened(tmp_path).take("x"), numbers)


def models_digest(directory: Path) -> str:
    checkpoint, digest = open_at(directory), WeightsDigest()
    build_model(checkpoint, digest=digest)
    return checkpoint.digest(digest)


def twin(directory: Path, other: Path, state: dict[str, torch.Tensor]) -> Path:
    """A checkpoint with the configuration in ``directory``, and ``state`` in PyTorch's file."""
    other.mkdir()
    for name in ("config.json", "generation_config.json"):
        shutil.copy(directory / name, other)
    save(other / "pytorch_model.bin", state)
    return other


def test_a_checkpoint_as_opt_was_published_is_its_twin_in_safetensors(tmp_path: Path) -> None:
    """In float16; with a head that is the table of embeddings, or without one and with names of the decoder alone."""
    model = make_model(configuration("opt")).half()
    directory = save_model(model, tmp_path / "safetensors")
    expected, digest, state = logits_of(load(directory), IDS), models_digest(directory), model.state_dict()
    assert state["lm_head.weight"].data_ptr() == state["model.decoder.embed_tokens.weight"].data_ptr()
    alone = {name.removeprefix("model."): tensor for name, tensor in state.items() if name != "lm_head.weight"}
    for number, layout in enumerate((state, alone | {"decoder.version": torch.tensor([3.0])})):
        other = twin(directory, tmp_path / str(number), layout)
        assert open_at(other).dtype == torch.float16
        assert torch.equal(logits_of(load(other), IDS), expected)
        assert models_digest(other) == digest == WeightsOnDisk(open_at(other)).digest(Event())
    untied = state | {"lm_head.weight": state["lm_head.weight"] + 1}
    with pytest.raises(CheckpointError, match=r"lm_head\.weight differs from model\.decoder\.embed_tokens\.weight"):
        load(twin(directory, tmp_path / "untied", untied))


def test_files_with_an_index(tmp_path: Path) -> None:
    model = make_model(CASES["qwen2-tied"])
    expected = logits_of(load(save_model(model, tmp_path)), IDS)
    (tmp_path / "model.safetensors").unlink()
    state = model.state_dict()
    shard = {name: f"pytorch_model-0000{1 + i % 2}-of-00002.bin" for i, name in enumerate(state)}
    for file in set(shard.values()):
        save(tmp_path / file, {name: state[name] for name in state if shard[name] == file})
    index = tmp_path / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": shard}))
    assert torch.equal(logits_of(load(tmp_path), IDS), expected)
    for wrong in ("../pytorch_model-00001-of-00002.bin", "pytorch_model-00003-of-00002.bin", "/etc/hostname"):
        index.write_text(json.dumps({"weight_map": shard | {"lm_head.weight": wrong}}))
        with pytest.raises(CheckpointError, match=re.escape(f"names {wrong!r}, which is not a file beside it")):
            find_tensors(tmp_path)
    index.write_text("[]")
    with pytest.raises(CheckpointError, match="is not an index of PyTorch files"):
        find_tensors(tmp_path)
    os.truncate(index, 2**40)
    with pytest.raises(CheckpointError, match="has 1099511627776 bytes: expected at most 67108864"):
        find_tensors(tmp_path)


def test_ranks_take_the_bytes_that_they_take_of_safetensors(tmp_path: Path) -> None:
    model = make_model(CASES["llama-mha-tied-biases"])
    directory = save_model(model, tmp_path / "safetensors")
    state = {name: tensor.t().contiguous().t() for name, tensor in model.state_dict().items()}  # by columns
    other = twin(directory, tmp_path / "torch", state)
    for tp in range(2):
        taken = []
        for each in (directory, other):
            digest = RankDigest()
            build_model(shared(open_at(each), 2), digest=digest, rank=Rank(tp, 2))
            taken.append(digest.taken)
        assert taken[0] == taken[1]


def test_which_files_are_read(tmp_path: Path) -> None:
    model = make_model(CASES["llama-gqa"])
    directory = save_model(model, tmp_path / "both")
    with torch.no_grad():
        model.model.norm.weight += 1
    save(directory / "pytorch_model.bin", model.state_dict())
    found = {name: next(iter(find_tensors(directory, name).values())).file for name in ("auto", "safetensors", "pt")}
    assert found == {
        "auto": directory / "model.safetensors",
        "safetensors": directory / "model.safetensors",
        "pt": directory / "pytorch_model.bin",
    }
    in_safetensors, in_torch = (logits_of(build_model(open_at(directory, name)), IDS) for name in ("auto", "pt"))
    assert not torch.equal(in_safetensors, in_torch)
    assert conversion_advice(directory, "auto") == ""
    assert "save_pretrained of transformers converts them to safetensors" in conversion_advice(directory, "pt")
    (directory / "model.safetensors").unlink()
    assert torch.equal(logits_of(load(directory), IDS), in_torch)
    with pytest.raises(CheckpointError, match="which --load-format safetensors does not read: leave that out"):
        open_at(directory, "safetensors", dtype="float32") and find_tensors(directory, "safetensors")
    (directory / "pytorch_model.bin").unlink()
    with pytest.raises(CheckpointError, match="which --load-format pt reads: leave that out"):
        find_tensors(directory, "pt")


@pytest.mark.parametrize(
    ("saved", "message"),
    [
        ({"model": {"x": torch.zeros(1)}, "step": 3}, "has 'model', which is a dict, not a tensor; transformers has"),
        ({"x": torch.zeros(1), "step": 3}, "has 'step', which is a int, not a tensor"),
        ({0: torch.zeros(1)}, "names an entry by the number 0"),
        ([torch.zeros(1)], "holds one list, not a dictionary of tensors"),
        (torch.zeros(1), "holds one tensor, not a dictionary of tensors"),
        ({"x": torch.zeros(2).to_sparse()}, "refers to torch._utils._rebuild_sparse_tensor"),
        ({"x": torch.zeros(2, dtype=torch.complex64).conj()}, "to be negated or conjugated"),
        ({"x": torch.zeros(2, device="meta")}, "refers to torch._utils._rebuild_meta_tensor_no_storage"),
        ({"x": torch.zeros(1).expand(5)}, "a tensor of 5 numbers that is not within its storage of 1"),
    ],
)
def test_what_is_no_checkpoint_of_transformers(saved: object, message: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=re.escape(message)):
        torch_tensors(save(tmp_path / "x.bin", saved))


def duplicate(file: Path) -> None:
    with (
        zipfile.ZipFile(archive(file, tensor(), **{"data/0": FOUR}), "a") as written,
        pytest.warns(UserWarning, match="Duplicate"),
    ):
        written.writestr("archive/data/0", FOUR)


def claim_a_long_directory(file: Path) -> None:
    content = bytearray(archive(file, tensor(), **{"data/0": FOUR}).read_bytes())
    content[-10:-6] = (2**31).to_bytes(4, "little")
    file.write_bytes(bytes(2**20) + content)
    os.truncate(file, 0)
    with file.open("r+b") as opened:
        opened.write(b"PK\x03\x04")
        opened.seek(2**31)
        opened.write(content)


ARCHIVES: dict[str, tuple[Callable[[Path], object], str]] = {
    "empty": (Path.touch, "does not begin as a file of torch.save does"),
    "text": (lambda file: file.write_text("no"), "does not begin as a file of torch.save does"),
    "before torch 1.6": (
        lambda file: save(file, VIEWS, _use_new_zipfile_serialization=False),
        "is in the format from before torch 1.6, which is not read; download it again, or load the model in",
    ),
    "program": (lambda file: archive(file, tensor(), **{"constants.pkl": b""}), "is a TorchScript program"),
    "compressed": (
        lambda file: archive(file, tensor(), zipfile.ZIP_DEFLATED, **{"data/0": bytes(2**20)}),
        "has an entry 'archive/data.pkl' that is compressed or encrypted",
    ),
    "big-endian": (
        lambda file: archive(file, tensor(), **{"data/0": FOUR, "byteorder": b"big"}),
        "has numbers in another byte order than little-endian",
    ),
    "two of one name": (duplicate, "has two entries of one name"),
    "outside the folder": (
        lambda file: zipped(file, **{"a/data.pkl": tensor(), "a/data/0": FOUR, "data/0": FOUR}),
        "has an entry 'data/0' outside its folder 'a/'",
    ),
    "no pickle": (lambda file: zipped(file, x=b""), "has 0 files data.pkl: expected one"),
    "two pickles": (
        lambda file: zipped(file, **{"a/data.pkl": tensor(), "b/data.pkl": tensor()}),
        "has 2 files data.pkl",
    ),
    "long pickle": (lambda file: archive(file, bytes(2**24 + 1)), "has a pickle of 16777217 bytes: expected at most"),
    "long directory": (claim_a_long_directory, "has a list of entries of 2147483648 bytes: expected at most 4194304"),
    "pointer": (lambda file: file.write_text("version https://git-lfs.github.com/spec/v1\n"), "git lfs pull"),
}


@pytest.mark.parametrize("name", ARCHIVES)
def test_archives_of_another_kind(name: str, tmp_path: Path) -> None:
    make, message = ARCHIVES[name]
    file = tmp_path / "pytorch_model.bin"
    make(file)
    with pytest.raises(CheckpointError, match=re.escape(message)):
        torch_tensors(file)


def content_of(file: bytes, tensor: StoredTensor) -> bytes:
    return file[tensor.start : tensor.start + tensor.nbytes]


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.wide)])
def test_damaged_files_cost_one_error_and_change_no_tensor(seed: int, tmp_path: Path) -> None:
    """20,000 of them with ``--wide``, else 2,000. At most, numbers are changed whose own bytes are."""
    file = save(tmp_path / "model.bin", VIEWS | CODES)
    content, whole = file.read_bytes(), torch_tensors(file)
    rng, count, refused = random.Random(seed), 20_000 if seed else 2_000, list[str]()
    before = getrusage(RUSAGE_SELF).ru_maxrss
    for _ in range(count):
        damaged, most = damage(rng, content)
        file.write_bytes(damaged)
        try:
            found = torch_tensors(file)
        except CheckpointError as error:
            refused.append(str(error))
            continue
        assert {name: each.shape for name, each in found.items()} == {name: each.shape for name, each in whole.items()}
        for name, each in found.items():
            ours, theirs = content_of(damaged, each), content_of(content, whole[name])
            assert (each.type_name, each.strides) == (whole[name].type_name, whole[name].strides)
            assert len(ours) == len(theirs) == each.nbytes
            assert sum(x != y for x, y in zip(ours, theirs, strict=True)) <= max(most, 0)
    assert count / 4 < len(refused) < count
    assert all(error.startswith(f"{file} ") for error in refused)
    assert getrusage(RUSAGE_SELF).ru_maxrss < before + 2**16  # in KiB


def test_pickles_of_python_are_not_read(tmp_path: Path) -> None:
    file = tmp_path / "pytorch_model.bin"
    file.write_bytes(pickle.dumps({"x": 1}))
    with pytest.raises(CheckpointError, match="does not begin as a file of torch"):
        torch_tensors(file)
