"""The live page of the metrics port: one static file, and the numbers that it asks for every second.

The file's own style and script are all that a browser may use for it: nothing is loaded from elsewhere, and what names
of peers contain is shown as it is.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from importlib.resources import files

from services.processor.dashboard.snapshot import DashboardSnapshot
from services.telemetry.metrics_endpoint import Page


def pages(overview: DashboardSnapshot) -> Mapping[str, Page]:
    """What the metrics port answers beside ``/metrics``."""
    html = files(__package__).joinpath("page.html").read_text()
    policy = {
        "Content-Security-Policy": f"default-src 'none'; connect-src 'self'; img-src data:; base-uri 'none'; "
        f"form-action 'none'; frame-ancestors 'none'; "
        f"style-src {_hash(html, 'style')}; script-src {_hash(html, 'script')}",
        "Referrer-Policy": "no-referrer",
    }
    body = html.encode()
    return {
        "/": Page("text/html; charset=utf-8", lambda: body, policy),
        "/ring.json": Page("application/json", overview.json),
    }


def _hash(html: str, element: str) -> str:
    """What names the one element of its kind in a content security policy."""
    (content,) = re.findall(rf"<{element}>(.*?)</{element}>", html, re.DOTALL)
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"
