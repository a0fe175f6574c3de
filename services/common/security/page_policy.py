"""The browser's policy for a single-file page: only its own style and script, and requests to its own server."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping


def page_headers(html: str) -> Mapping[str, str]:
    """Headers under which nothing is loaded from elsewhere, and no text that the page shows can run as a script."""
    return {
        "Content-Security-Policy": f"default-src 'none'; connect-src 'self'; img-src data:; base-uri 'none'; "
        f"form-action 'none'; frame-ancestors 'none'; "
        f"style-src {_hash(html, 'style')}; script-src {_hash(html, 'script')}",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
    }


def _hash(html: str, element: str) -> str:
    """The hash of the page's only ``element``, in the syntax of a content security policy."""
    (content,) = re.findall(rf"<{element}>(.*?)</{element}>", html, re.DOTALL)
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"
