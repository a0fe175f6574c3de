"""The dashboard on the metrics port: one static file, and the numbers that it fetches every second.

A content security policy allows the file's own style and script only: nothing is loaded from elsewhere, and names of
peers cannot inject anything.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from importlib.resources import files

from services.common.telemetry.metrics_endpoint import Page
from services.processor.dashboard.snapshot import DashboardSnapshot


def pages(snapshot: DashboardSnapshot) -> Mapping[str, Page]:
    """The pages that the metrics port serves in addition to ``/metrics``, keyed by path."""
    html = files(__package__).joinpath("page.html").read_text(encoding="utf-8")
    policy = {
        "Content-Security-Policy": f"default-src 'none'; connect-src 'self'; img-src data:; base-uri 'none'; "
        f"form-action 'none'; frame-ancestors 'none'; "
        f"style-src {_hash(html, 'style')}; script-src {_hash(html, 'script')}",
        "Referrer-Policy": "no-referrer",
    }
    body = html.encode()
    return {
        "/": Page("text/html; charset=utf-8", lambda: body, policy),
        "/ring.json": Page("application/json", snapshot.json),
    }


def _hash(html: str, element: str) -> str:
    """The hash of the page's only ``element``, in the syntax of a content security policy."""
    (content,) = re.findall(rf"<{element}>(.*?)</{element}>", html, re.DOTALL)
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"
