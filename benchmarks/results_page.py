"""Writes RESULTS.md and its plots from the results of ``compare``. Each part states time, machine and versions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.goals import gpu_table
from benchmarks.report import Row, aligned
from benchmarks.targets import Parts, verdicts

_ORDER = (
    "offline",
    "quantized",
    "hybrids",
    "drafts",
    "embeddings",
    "adapters",
    "served",
    "ring-cost",
    "starts",
    "sweeps",
    "kernels",
)
_TITLES = {
    "offline": "Offline, in turns with the peers",
    "quantized": "Weights of 4 bits, in turns with llama.cpp on the same file",
    "hybrids": "Models whose layers keep states, in turns with llama.cpp on the same file",
    "drafts": "Drafts: with and without, in turns",
    "embeddings": "Vectors of texts, in turns with other engines",
    "adapters": "Adapters: with and without, in turns with vLLM",
    "served": "Served: a streaming client on the same cores",
    "ring-cost": "What the ring costs",
    "starts": "From process start to first token",
    "sweeps": "How cost grows",
    "kernels": "Kernels",
}
_INTRODUCTION = """# Results

Written by `python -m benchmarks.compare --report`; [README.md](README.md) says how each figure is taken. Figures are
medians of interleaved rounds; a limit is what the machine's memory bandwidth and matrix products allowed in those same
rounds. Compare figures of one table only: the machine is shared.
"""


def write_page(results: Path, page: Path) -> None:
    """Write all parts found in ``results``."""
    parts: dict[str, Mapping[str, Any]] = {
        name: json.loads((results / f"{name}.json").read_text())
        for name in _ORDER
        if (results / f"{name}.json").exists()
    }
    if not parts:
        raise SystemExit(f"{results} has no part: measure some first")
    lines = [_INTRODUCTION, "## Targets", "", *aligned(verdicts(parts))]
    for name, part in parts.items():
        lines += ["", f"## {_TITLES[name]}", "", _circumstances(part)]
        for title, rows in part["figures"].items():
            lines += ["", f"### {title}", "", *aligned(rows)] if len(part["figures"]) > 1 else ["", *aligned(rows)]
    lines += _on_gpus(sorted(results.glob("gpu-*.json")))
    for picture in draw(parts, results):
        lines += ["", f"![{picture.stem}]({picture.relative_to(page.parent.resolve())})"]
    page.write_text("\n".join(lines) + "\n")
    print(f"wrote {page}")


def _on_gpus(paths: Sequence[Path]) -> list[str]:
    """The section on GPUs, with a column for each card's results of ``make gpu-run``; without any, only the goals."""
    lines = ["", "## On NVIDIA GPUs", ""]
    parts = {path.stem.removeprefix("gpu-"): json.loads(path.read_text()) for path in paths}
    for card, part in parts.items():
        if (part["device"], part["scale"]) != ("cuda", "full"):
            raise SystemExit(f"gpu-{card}.json is of a rehearsal ({part['device']}, {part['scale']}): remove it")
        lines += [f"{card}: {_gpu(part)}{_circumstances(part)}", ""]
    if not parts:
        lines += [
            "Not measured: no GPU was at hand. [docs/how-to/gpu.md](../docs/how-to/gpu.md) says what to run on one.",
            "",
        ]
    return [*lines, *aligned(gpu_table({card: part["figures"] for card, part in parts.items()}))]


def _gpu(part: Mapping[str, Any]) -> str:
    """The card and its software, as the part ``preflight`` has found them."""
    row: Row = next((row for row in part["figures"] if row["what"] == "machine"), {})
    return "".join(f"{name}: {row[name]}; " for name in ("GPU", "driver, processes", "CUDA of torch") if row.get(name))


def _circumstances(part: Mapping[str, Any]) -> str:
    machine = part["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in part["versions"].items())
    return (
        f"{part['date']}, commit {part['commit']}. {machine['processor']}, {machine['cores']} cores "
        f"({', '.join(machine['instruction_sets'])}), {machine['memory_gib']} GiB, {machine['system']}; load "
        f"average at the end {part['load_average'][0]:.1f}. {versions}."
    )


def draw(parts: Parts, directory: Path) -> list[Path]:
    """Draw the plots of the measured parts; returns their files."""
    from benchmarks.plots import plot_bars, plot_lines, plot_sweep

    directory = directory.resolve()
    drawn = []
    if "offline" in parts:
        drawn.append(directory / "offline.png")
        plot_bars("offline, tokens/s", "tokens/s", _bars(parts["offline"]["figures"]["figures"]), drawn[-1])
    if "served" in parts:
        drawn.append(directory / "served.png")
        figures = ("tok/s", "TTFT p50 ms", "gap p50 ms")
        plot_lines("served, tiny-llama", parts["served"]["figures"]["figures"], "server", figures, drawn[-1])
    for sweep, rows in parts["sweeps"]["figures"].items() if "sweeps" in parts else ():
        drawn.append(directory / f"{sweep}.png")
        plot_sweep(sweep, rows, drawn[-1])
    return drawn


def _bars(rows: list[Row]) -> list[tuple[str, dict[str, float]]]:
    groups: dict[str, dict[str, float]] = {}
    for row in rows:
        groups.setdefault(row["work"], {"limit": row["limit"]})[row["engine"]] = row["tok/s"]
    return list(groups.items())
