"""Draws the dashboard with live data, for docs/reference/metrics.md: ``python -m tests.deploy.draw_dashboard PICTURE``.

A ring under load, Prometheus that scrapes it, each panel of the dashboard's file at its place with the answers to its
queries. It is no Grafana: what the file asks and what comes back is real, how it looks is matplotlib's.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
import tempfile
import time
from contextlib import suppress
from itertools import cycle
from pathlib import Path
from typing import Any

import grpc
import matplotlib
from ringline.inference.v1 import inference_pb2_grpc

from tests.deploy.prometheus import Prometheus, scraping
from tests.ring import ROOT, Ring, running_ring
from tests.services.streams import ask

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.figure import Figure

SECONDS, STEP, RATE = 110, 1.0, "10s"
"""Of load; between points; that rates are taken over."""
KILLED_AFTER = 70
"""Seconds after which the engine is killed: the ring's supervisor starts another."""
STREAMS = {"north": 3, "south": 2, "flood": 12}
"""Of each tenant at a time; the last in the middle third alone."""
WIDTH, ROW = 24, 0.36
"""Columns of Grafana's grid; inches of one of its rows."""
COLORS = ("#56a64b", "#f2cc0c", "#3274d9", "#ff780a", "#e02f44", "#a352cc", "#37872d", "#705da0")


async def work(ring: Ring, begin: float) -> None:
    """Load of several tenants, refusals among it, and an engine that dies."""
    async with grpc.aio.insecure_channel(ring.address) as channel:
        front = inference_pb2_grpc.InferenceServiceStub(channel)

        async def client(tenant: str, number: int) -> None:
            while (now := time.time() - begin) < SECONDS:
                if tenant == "flood" and not SECONDS / 3 < now < SECONDS * 2 / 3:
                    await asyncio.sleep(0.5)
                    continue
                request = ask("r", text=f"Once upon a time {number}", max_tokens=48 + 16 * number)
                if number == 1 and int(now) % 5 == 0:
                    request.sampling.temperature = -1.0  # refused
                with suppress(grpc.aio.AioRpcError):
                    call = front.Generate(request, metadata=(("x-ringline-tenant", tenant),), timeout=60)
                    async for _ in call:
                        pass
                await asyncio.sleep(0.2)

        async def kill() -> None:
            await asyncio.sleep(KILLED_AFTER)
            os.kill(ring.pid("engine"), signal.SIGKILL)

        clients = [client(tenant, number) for tenant, most in STREAMS.items() for number in range(most)]
        await asyncio.gather(kill(), *clients)


def draw(dashboard: dict[str, Any], prometheus: Prometheus, begin: float, end: float) -> Figure:
    """Every panel at its place."""
    panels = dashboard["panels"]
    rows = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in panels)
    figure = pyplot.figure(figsize=(16, rows * ROW), facecolor="#f4f5f5")
    for panel in panels:
        place = panel["gridPos"]
        box = (
            (place["x"] + 0.7) / WIDTH,
            1 - (place["y"] + place["h"] - 0.9) / rows,
            (place["w"] - 1.0) / WIDTH,
            (place["h"] - 2.0) / rows,
        )
        if panel["type"] == "row":
            figure.text(0.01, 1 - (place["y"] + 0.8) / rows, panel["title"], fontsize=13, fontweight="bold")
        elif panel["type"] == "stat":
            number(figure, box, panel, prometheus, begin, end)
        else:
            lines(figure, box, panel, prometheus, begin, end)
    return figure


def answers(
    panel: dict[str, Any], prometheus: Prometheus, begin: float, end: float
) -> list[tuple[str, list[float], list[float]]]:
    """What a panel's queries bring: names, seconds and values."""
    found = []
    for target in panel["targets"]:
        expression = target["expr"].replace("$__rate_interval", RATE).replace('=~"$model"', '=~".*"')
        for one in prometheus.query_range(expression, begin, end, STEP):
            name = re.sub(
                r"\{\{(\w+)\}\}", lambda label, one=one: one["metric"].get(label[1], ""), target["legendFormat"]
            )
            found.append((name, [at - begin for at, _ in one["values"]], [float(value) for _, value in one["values"]]))
    return found


def number(figure: Figure, box: Any, panel: dict[str, Any], prometheus: Prometheus, begin: float, end: float) -> None:
    """The last value, large."""
    axes = figure.add_axes(box, facecolor="white")
    axes.set(xticks=[], yticks=[], title=panel["title"])
    found = answers(panel, prometheus, begin, end)
    shown = written(found[0][2][-1], panel) if found else "no data"
    axes.text(0.5, 0.5, shown, ha="center", va="center", fontsize=20, color=COLORS[6])


def lines(figure: Figure, box: Any, panel: dict[str, Any], prometheus: Prometheus, begin: float, end: float) -> None:
    """Values over time, on top of each other where the panel says so."""
    axes = figure.add_axes(box, facecolor="white")
    axes.set_title(panel["title"], fontsize=10, loc="left")
    axes.set_xlim(0, end - begin)
    axes.tick_params(labelsize=7)
    axes.grid(color="#e9edf2")
    axes.yaxis.set_major_formatter(lambda value, _: written(value, panel))
    stacked = panel["fieldConfig"]["defaults"].get("custom", {}).get("stacking", {}).get("mode") == "normal"
    below: dict[float, float] = {}
    for (name, at, values), color in zip(answers(panel, prometheus, begin, end), cycle(COLORS), strict=False):
        floor = [below.get(second, 0.0) if stacked else 0.0 for second in at]
        top = [
            low + (0.0 if value != value else value) if stacked else value
            for low, value in zip(floor, values, strict=True)
        ]
        axes.plot(at, top, color=color, linewidth=1, label=name or None)
        if stacked:
            axes.fill_between(at, floor, top, color=color, alpha=0.25)
            below |= dict(zip(at, top, strict=True))
    axes.set_ylim(bottom=0)
    if axes.get_legend_handles_labels()[1]:
        axes.legend(fontsize=6, loc="upper left", ncols=2, framealpha=0.6)


def written(value: float, panel: dict[str, Any]) -> str:
    """With the panel's unit."""
    match panel["fieldConfig"]["defaults"].get("unit"):
        case "s":
            return f"{value:.3g} s" if value >= 1 else f"{1000 * value:.3g} ms"
        case "percentunit":
            return f"{100 * value:.3g} %"
        case "bytes":
            return f"{value / 2**20:.0f} MiB"
        case "reqps":
            return f"{value:.3g}/s"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def main(picture: Path) -> None:
    """Run the ring and draw."""
    dashboard = json.loads((ROOT / "deploy" / "grafana" / "dashboards" / "ringline.json").read_text())
    with (
        tempfile.TemporaryDirectory() as folder,
        running_ring(Path(folder), "--max-num-seqs=8") as ring,
        scraping(ring, Path(folder)) as prometheus,
    ):
        begin = time.time()
        asyncio.run(work(ring, begin))
        draw(dashboard, prometheus, begin, time.time()).savefig(picture, dpi=70)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
