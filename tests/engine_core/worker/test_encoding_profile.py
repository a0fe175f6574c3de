"""What encoding takes: measured on one picture, told for the largest, and counted before the KV cache."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

from engine_core.errors import CheckpointError
from engine_core.media import Picture, VisionShape
from engine_core.models.vision_model import Encoded
from engine_core.platforms.cpu import CpuPlatform
from engine_core.platforms.kv_cache_size import MemoryProfile
from engine_core.worker.encoding_profile import EncodingProfile
from engine_core.worker.input_batch import BatchLimits
from engine_core.worker.self_test import is_encoding_stable
from engine_core.worker.worker import Worker
from tests.engine_core.engines import StageDetails, started
from tests.engine_core.pictures import MOST_TOKENS, TinyVision, make_multimodal, picture, seeing

LIMITS = BatchLimits(4, 512, 1024, 16, encoder_step_tokens=6000, encoder_cache_tokens=9000)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    _, directory = make_multimodal("Qwen3VLForConditionalGeneration", tmp_path_factory.mktemp("model"))
    with seeing():
        yield directory


def test_a_larger_picture_takes_as_much_more_memory_and_its_square_of_time() -> None:
    encoded = Encoded(torch.zeros(1000, 8), torch.zeros(2, 1000, 8))
    profile = EncodingProfile(picture(1, 25, 40), encoded, True, 2.0, 4000, VisionShape(3000, num_deepstack=2))
    assert profile.with_pictures(100, 200) == 300 + 300
    assert profile.with_pictures(100, 400) == 300 + 400
    assert profile.rows_per_token == 4
    assert profile.step_seconds(LIMITS) == pytest.approx(2.0 * 9 * 2)  # two of the largest fit into a step
    assert profile.cache_bytes(LIMITS) == 9000 * 3 * 8 * 4
    of_largest = replace(profile, shape=VisionShape(1000))
    assert of_largest.with_pictures(100, 0) == 200
    assert of_largest.step_seconds(LIMITS) == pytest.approx(2.0 * 6)


def test_a_start_counts_embeddings_and_encodes_a_picture_in_a_step(directory: Path) -> None:
    profiles, seconds, said = list[MemoryProfile](), list[float](), StageDetails()
    profile, warm_up = CpuPlatform.profile, Worker.warm_up

    def noted(self: CpuPlatform, *arguments: object) -> MemoryProfile:
        profiles.append(profile(self, *arguments))  # type: ignore[arg-type]
        return profiles[-1]

    def warmed(self: Worker, *arguments: object) -> object:
        encode, calls = TinyVision.encode, list[object]()

        def slow(vision: TinyVision, each: object) -> Encoded:
            calls.append(each)
            return encode(vision, each)  # type: ignore[arg-type]

        assert self.device.encoding is not None
        self.device.encoding = replace(self.device.encoding, seconds=1000.0)
        with patch.object(TinyVision, "encode", slow):
            report = warm_up(self, *arguments)  # type: ignore[arg-type]
        assert len(calls) == 3  # in a prompt, and twice in the self-test
        assert len(self._current_runner().encoder_cache) == 0
        seconds.append(report.largest_step_seconds)
        return report

    options: dict[str, Any] = {
        "kv_cache_memory_bytes": None,
        "max_model_len": 64,
        "max_num_batched_tokens": 48,
        "max_num_seqs": 2,
    }
    with (
        patch.object(CpuPlatform, "profile", noted),
        patch.object(Worker, "warm_up", warmed),
        started(directory, said=said, encoder_cache_tokens=70, **options),
    ):
        pass
    assert [each.encoder_cache for each in profiles] == [70 * (1 + 2) * 64 * 4]
    assert "embeddings of pictures 52.5 KiB (--encoder-cache-tokens)" in profiles[0].describe(0.9)
    assert replace(profiles[0], encoder_cache=0).left(0.9) - profiles[0].left(0.9) == profiles[0].encoder_cache
    assert seconds[0] > 1000.0 * 48 / MOST_TOKENS
    bound = "takes about 2000 s, 2000 s of it to encode pictures; a lower --max-num-batched-tokens bounds"
    assert bound in said.details["warm up"].replace(", one without prompts far less", "")


def test_without_a_profile_a_picture_is_measured_too(directory: Path) -> None:
    encode, calls, said = TinyVision.encode, list[object](), StageDetails()

    def noted(self: TinyVision, each: object) -> Encoded:
        calls.append(each)
        return encode(self, each)  # type: ignore[arg-type]

    with patch.object(TinyVision, "encode", noted), started(directory, said=said):
        assert len(calls) == 4
    served = "Qwen3VLForConditionalGeneration, with pictures: Qwen3ForCausalLM"
    assert said.details["configuration"].startswith(served)


def test_a_start_is_refused_if_pictures_give_no_numbers(directory: Path) -> None:
    def overflowing(self: TinyVision, each: Picture) -> Encoded:
        return Encoded(torch.full((each.shape.num_tokens, 64), torch.inf))

    refused = "NaN for its very first tokens, which begins in what encodes pictures: .*--dtype float32"
    with (
        patch.object(TinyVision, "encode", overflowing),
        pytest.raises(CheckpointError, match=refused),
        started(directory),
    ):
        pass


def test_a_tower_whose_bits_depend_on_threads_is_found(directory: Path) -> None:
    class Unstable(TinyVision):
        def __init__(self) -> None:
            self.shape = VisionShape(MOST_TOKENS)

        def encode(self, picture: object) -> Encoded:  # type: ignore[override]
            return Encoded(torch.full((2, 2), float(torch.get_num_threads() > 1 and self.depends)))

    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        for depends in (True, False):
            tower = Unstable()  # type: ignore[abstract]
            tower.depends = depends  # type: ignore[attr-defined]
            assert is_encoding_stable(tower) is not depends
    finally:
        torch.set_num_threads(threads)
