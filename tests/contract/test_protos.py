"""The contract is clean by buf's rules and says what a caller must know; a change that breaks callers is noticed."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorSet

from tests.contract.later import BUF, PROTOS
from tests.programs import output_of, run

REQUESTS = {
    "SamplingParams",
    "GenerateRequest",
    "Chat",
    "StoppingParams",
    "OutputParams",
    "TokenizeRequest",
    "DetokenizeRequest",
    "Submit",
    "DrainRequest",
    "ProfileRequest",
}
"""Messages whose optional fields have a default that a caller relies on."""
UNITS = {"_ms": "milliseconds", "_seconds": "seconds", "_bytes": "bytes"}


def build(protos: Path, image: Path, *options: str) -> Path:
    """One image of all modules, which is what a baseline is compared with."""
    output_of(BUF, "build", protos, *options, "-o", image)
    return image


def breaking(protos: Path, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    image = build(protos, tmp_path / "image.binpb", "--exclude-source-info")
    return run(BUF, "breaking", image, "--against", PROTOS / "baseline.binpb", "--config", PROTOS / "buf.yaml")


def test_lint() -> None:
    output_of(BUF, "lint", PROTOS)


def test_format() -> None:
    output_of(BUF, "format", "--diff", "--exit-code", PROTOS)


def test_baseline_is_not_broken(tmp_path: Path) -> None:
    result = breaking(PROTOS, tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr


ENGINE, INFERENCE, OUTPUT = (
    f"ringline/{name}.proto" for name in ("engine/v1/engine", "inference/v1/inference", "types/v1/output")
)


@pytest.mark.parametrize(
    ("file", "old", "new", "complaint"),
    [
        (ENGINE, "  uint32 blocks_total = 12;\n", "", '"blocks_total" on message "Load" was deleted'),
        (ENGINE, "uint64 steps = 1;", "uint32 steps = 1;", '"steps" on message "Load" changed type'),
        (ENGINE, "uint32 ledgers = 10;", "uint32 ledgers = 30;", '"ledgers" on message "Load" was deleted'),
        (ENGINE, "float kv_usage = 6;", "float usage = 6;", 'changed name from "kv_usage" to "usage"'),
        (INFERENCE, "repeated uint32 token_ids = 4;", "uint32 token_ids = 4;", "changed cardinality"),
        (INFERENCE, "optional sint32 priority = 11;", "sint32 priority = 11;", "changed cardinality"),
        (INFERENCE, "  rpc ListModels(ListModelsRequest) returns (ListModelsResponse);\n", "", 'RPC "ListModels"'),
        (INFERENCE, "returns (stream GenerateResponse)", "returns (GenerateResponse)", "server streaming"),
        (OUTPUT, "  FINISH_REASON_DEADLINE = 4;\n", "", 'value "4"'),
    ],
)
def test_broken_copy_is_noticed(tmp_path: Path, file: str, old: str, new: str, complaint: str) -> None:
    copy = edited_copy(tmp_path, file, old, new)
    result = breaking(copy, tmp_path)
    assert result.returncode == 100
    assert complaint in result.stdout


def test_compatible_copy_passes(tmp_path: Path) -> None:
    """So that the test above fails for the change it makes, and for nothing about being a copy."""
    copy = edited_copy(tmp_path, ENGINE, "uint64 steps = 1;", "uint64 steps = 1;\n  // More.\n  uint64 more = 99;")
    assert breaking(copy, tmp_path).returncode == 0


def edited_copy(tmp_path: Path, file: str, old: str, new: str) -> Path:
    copy = tmp_path / "protos"
    shutil.copytree(PROTOS, copy)
    text = (copy / file).read_text()
    assert text.count(old) == 1, f"{file} has {text.count(old)} of {old!r}"
    (copy / file).write_text(text.replace(old, new))
    return copy


def test_comments_name_defaults_and_units(tmp_path: Path) -> None:
    """buf's COMMENTS rules want a comment everywhere; this wants it to say what a number means."""
    image = FileDescriptorSet.FromString(build(PROTOS, tmp_path / "image.binpb").read_bytes())
    seen, missing = 0, []
    for message, field, comment in commented_fields(image):
        seen += 1
        words = [unit for suffix, unit in UNITS.items() if field.name.endswith(suffix)]
        if message.name in REQUESTS and field.proto3_optional:
            words.append("default")
        missing += [
            f"{message.name}.{field.name}: {word}" for word in words if not re.search(word, comment, re.IGNORECASE)
        ]
    assert seen > 150
    assert not missing


def commented_fields(image: FileDescriptorSet) -> Iterator[tuple[DescriptorProto, FieldDescriptorProto, str]]:
    """Every field of ringline's own files with the comment before it."""
    for file in image.file:
        if not file.package.startswith("ringline."):
            continue
        comments = {tuple(at.path): at.leading_comments for at in file.source_code_info.location}
        for i, message in enumerate(file.message_type):
            assert not message.nested_type or all(nested.options.map_entry for nested in message.nested_type)
            for j, field in enumerate(message.field):
                # descriptor.proto: FileDescriptorProto.message_type = 4, DescriptorProto.field = 2.
                yield message, field, comments[4, i, 2, j]
