"""Plots of benchmark results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import matplotlib

from benchmarks.report import Row

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.patches import Patch

_OURS, _OURS_INT8, _LIMIT, _PEERS = (
    "#1565c0",
    "#64b5f6",
    "#9e9e9e",
    ("#ef6c00", "#6a1b9a", "#2e7d32", "#c62828", "#00838f"),
)


def plot_sweep(sweep: str, rows: Sequence[Row], path: Path) -> None:
    """Tokens per second over the varied quantity, with the limit."""
    axis, scale = _axes(sweep)
    figures = {
        "streams": (("decode tok/s", "decode limit"), ("prompt tok/s", "prompt limit")),
        "context": (("decode tok/s", "decode limit"), ("prompt tok/s", "prompt limit")),
        "prefix": (("prompt tok/s", "prompt limit"), ("TTFT ms", None)),
    }[sweep]
    canvas, panels = pyplot.subplots(1, len(figures), figsize=(10, 4), layout="constrained")
    x = [scale(row) for row in rows]
    for panel, (measured, limit) in zip(panels, figures, strict=True):
        if limit is not None:
            panel.plot(x, [row[limit] for row in rows], "--", color=_LIMIT, label="limit of the machine")
        panel.plot(x, [row[measured] for row in rows], "o-", color=_OURS, label="Ringline")
        panel.set(xlabel=axis, ylabel=measured, ylim=(0, None))
        if sweep != "prefix":
            panel.set_xscale("log", base=2)
            panel.set_xticks(x, [f"{value:g}" for value in x])
        panel.grid(alpha=0.3)
        panel.legend()
    _save(canvas, path)


def plot_bars(title: str, unit: str, rows: Sequence[tuple[str, dict[str, float]]], path: Path) -> None:
    """A group of bars for each of ``rows``: (name, figures keyed by contestant); "limit" is drawn grey."""
    names = list(dict.fromkeys(name for _, figures in rows for name in figures))
    fixed = {"Ringline": _OURS, "Ringline int8": _OURS_INT8, "limit": _LIMIT}
    colors = fixed | dict(zip((name for name in names if name not in fixed), _PEERS * 3, strict=False))
    canvas, panels = pyplot.subplots(
        1, len(rows), figsize=(2.6 * len(rows) + 2, 4), layout="constrained", squeeze=False
    )
    for panel, (group, figures) in zip(panels[0], rows, strict=True):
        panel.bar(range(len(figures)), list(figures.values()), color=[colors[name] for name in figures])
        panel.set_xticks([])
        panel.set(title=group, ylabel=unit if panel is panels[0][0] else None)
        for place, value in enumerate(figures.values()):
            panel.annotate(
                f"{value:,.0f}" if value >= 100 else f"{value:.3g}",
                (place, value),
                ha="center",
                va="bottom",
                fontsize=8,
            )
    handles = [Patch(color=colors[name]) for name in names]
    canvas.legend(handles, names, loc="outside lower center", ncols=4)
    canvas.suptitle(title)
    _save(canvas, path)


def plot_lines(title: str, rows: Sequence[Row], key: str, figures: Sequence[str], path: Path) -> None:
    """One panel for each of ``figures``, with a line for each server over the number of streams."""
    canvas, panels = pyplot.subplots(
        1, len(figures), figsize=(5 * len(figures), 4), layout="constrained", squeeze=False
    )
    for panel, figure in zip(panels[0], figures, strict=True):
        for place, name in enumerate(dict.fromkeys(row[key] for row in rows)):
            points = [(row["streams"], row[figure]) for row in rows if row[key] == name and row[figure] is not None]
            color = _OURS if place == 0 else _PEERS[(place - 1) % len(_PEERS)]
            panel.plot([x for x, _ in points], [y for _, y in points], "o-", color=color, label=name)
        panel.set_xscale("log", base=2)
        panel.set_yscale("log")
        panel.set(xlabel="streams", ylabel=figure)
        panel.grid(alpha=0.3, which="both")
    panels[0][0].legend()
    canvas.suptitle(title)
    _save(canvas, path)


def plot_memory(seconds: Sequence[float], resident: Mapping[str, Sequence[int]], title: str, path: Path) -> None:
    """Resident memory of processes over time, in separate panels because they differ by orders of magnitude."""
    canvas, panels = pyplot.subplots(
        1, len(resident), figsize=(4 * len(resident), 3.2), layout="constrained", squeeze=False
    )
    for panel, (name, seen) in zip(panels[0], resident.items(), strict=True):
        panel.plot(seconds, [size / 2**20 for size in seen], color=_OURS)
        panel.set(title=name, xlabel="seconds", ylabel="MiB", ylim=(0, None))
        panel.grid(alpha=0.3)
    canvas.suptitle(title)
    _save(canvas, path)


def _axes(sweep: str) -> tuple[str, Callable[[Row], float]]:
    """The label of a sweep's varied quantity, and the function that reads it from a row."""
    match sweep:
        case "streams":
            return "streams", lambda row: float(row["streams"])
        case "context":
            return "prompt tokens", lambda row: float(row["prompt"])
    return "share of the prompt in the prefix cache, %", lambda row: 100 * float(row["cached"])


def _save(canvas: matplotlib.figure.Figure, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    canvas.savefig(path, dpi=110)
    pyplot.close(canvas)
