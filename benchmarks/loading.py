"""Time to read and pack experts: a checkpoint with three tensors per expert, compared with one with two per layer.

python -m benchmarks.loading                     # 48 layers of 128 experts: 18,432 tensors
python -m benchmarks.loading --hidden 2048 --intermediate 768 --layers 4
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import torch
from safetensors.torch import save_file

from benchmarks.report import Row, emit, output_options, print_table
from benchmarks.rounds import Figure
from benchmarks.startup import forget
from engine_core.activation import Activation
from engine_core.kernels.library import load_kernels
from engine_core.model_loader.digest import WeightsDigest
from engine_core.model_loader.expected import ExpectedTensors
from engine_core.model_loader.safetensors_reader import SafetensorsWeights
from engine_core.ops.base import UnloadedExperts
from engine_core.ops.native import NativeBackend
from engine_core.quantization.base import Unquantized
from engine_core.weights.expert_tensors import ExpertTensors, SeparateExperts, StackedExperts
from engine_core.weights.experts import ExpertsShape

_LAYERS_PER_FILE = 12


class Stored:
    """A checkpoint that has only experts."""

    def __init__(self, directory: Path, layers: list[ExpertTensors], shape: ExpertsShape) -> None:
        """Write the checkpoint, with random weights, to ``directory``."""
        directory.mkdir()
        self._directory, self._layers, self._shape = directory, layers, shape
        files: dict[str, str] = {}
        for first in range(0, len(layers), _LAYERS_PER_FILE):
            sizes = _sizes(layers[first : first + _LAYERS_PER_FILE], shape)
            file = f"model-{first:02}.safetensors"
            save_file({name: torch.randn(size).mul_(0.02).bfloat16() for name, size in sizes.items()}, directory / file)
            files |= dict.fromkeys(sizes, file)
        (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
        self.num_tensors = len(files)
        # The page cache holds freshly written files in various states; after this, it holds all in the same one.
        forget(directory / file for file in set(files.values()))
        for file in set(files.values()):
            (directory / file).read_bytes()

    def load(self, layers: list[UnloadedExperts]) -> float:
        """Seconds from opening the first file until the last one is closed."""
        started = time.perf_counter()
        sizes = _sizes(self._layers, self._shape)
        cpu, digest = torch.device("cpu"), WeightsDigest()
        weights = SafetensorsWeights(self._directory, ExpectedTensors(sizes), torch.bfloat16, cpu, digest=digest)
        for tensors, layer in zip(self._layers, layers, strict=True):
            layer.load(tensors.read(weights, self._shape, self._shape.whole))
        del weights  # include the unmapping of the files in the time
        return time.perf_counter() - started


def _sizes(layers: list[ExpertTensors], shape: ExpertsShape) -> dict[str, tuple[int, ...]]:
    return {name: size for tensors in layers for name, size in tensors.shapes(shape).items()}


def measure(num_layers: int, shape: ExpertsShape, rounds: int, directory: Path) -> list[Row]:
    """Measure both in turns, into the same memory, after a warm-up round: the first use of memory is slow."""
    prefixes = [f"model.layers.{index}.mlp.experts" for index in range(num_layers)]
    backend = NativeBackend(load_kernels())
    layers = [Unquantized().experts(shape, torch.bfloat16, backend) for _ in prefixes]
    separate = Stored(directory / "separate", [SeparateExperts(prefix) for prefix in prefixes], shape)
    stacked = Stored(directory / "stacked", [StackedExperts(prefix) for prefix in prefixes], shape)
    times: dict[int, list[float]] = {separate.num_tensors: [], stacked.num_tensors: []}
    for turn in range(rounds + 1):
        for stored in (separate, stacked)[:: 1 if turn % 2 else -1]:
            times[stored.num_tensors].append(stored.load(layers))
    times = {tensors: seconds[1:] for tensors, seconds in times.items()}
    ratio = Figure.of([many / few for many, few in zip(*times.values(), strict=True)])
    gigabytes = num_layers * shape.num_weights * 2 / 1e9
    beside = {"to the few": ratio.median, "low": ratio.lowest, "high": ratio.highest}
    rows: list[Row] = []
    for tensors, seconds in times.items():
        figure = Figure.of(seconds)
        row = {"tensors": tensors, "GB": gigabytes, "seconds": figure.median, "best": figure.lowest}
        rows.append(row | {"GB/s": gigabytes / figure.median} | beside)
        beside = {}
    return rows


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=48, help="(%(default)s)")
    parser.add_argument("--experts", type=int, default=128, help="of each layer (%(default)s)")
    parser.add_argument("--hidden", type=int, default=1024, help="(%(default)s)")
    parser.add_argument("--intermediate", type=int, default=128, help="of each expert (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="of which medians are shown (%(default)s)")
    output_options(parser)
    arguments = parser.parse_args()
    shape = ExpertsShape(arguments.experts, 8, arguments.hidden, arguments.intermediate, Activation.SILU)
    with tempfile.TemporaryDirectory() as directory:
        rows = measure(arguments.layers, shape, arguments.rounds, Path(directory))
    print_table(rows, "experts from the page cache")
    emit(arguments, "loading", rows)


if __name__ == "__main__":
    main()
