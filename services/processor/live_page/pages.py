"""The live page on the metrics port: one static file, and the numbers that it fetches every second."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files

from services.common.security.page_policy import page_headers
from services.common.telemetry.metrics_endpoint import Page
from services.processor.live_page.snapshot import LivePageSnapshot


def pages(snapshot: LivePageSnapshot) -> Mapping[str, Page]:
    """The pages that the metrics port serves in addition to ``/metrics``, keyed by path."""
    html = files(__package__).joinpath("page.html").read_text(encoding="utf-8")
    body = html.encode()
    return {
        "/": Page("text/html; charset=utf-8", lambda: body, page_headers(html)),
        "/ring.json": Page("application/json", snapshot.json),
    }
