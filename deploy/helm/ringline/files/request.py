"""What `helm test` runs: asks a gateway for its models, and one of them for a few tokens."""

import json
import os
import ssl
import sys
import urllib.error
import urllib.request
from typing import Any

URL = os.environ["URL"]
TOKENS = int(os.environ["MAX_TOKENS"])
CA = os.environ.get("CA_FILE")
TOKEN = os.environ.get("TOKEN", "").strip()


def call(path: str, body: object = None) -> Any:
    """The gateway's answer, as JSON."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(URL + path, data, {"Content-Type": "application/json"})
    if TOKEN:
        request.add_header("Authorization", f"Bearer {TOKEN}")
    context = ssl.create_default_context(cafile=CA) if CA else None
    with urllib.request.urlopen(request, timeout=60, context=context) as answer:
        return json.load(answer)


try:
    model = call("/v1/models")["data"][0]["id"]
    print(f"{URL} serves {model}")
    if TOKENS:
        answer = call("/v1/completions", {"model": model, "prompt": "Once upon a time", "max_tokens": TOKENS})
        print(f"it answers {answer['choices'][0]['text']!r}")
except urllib.error.HTTPError as error:
    sys.exit(f"{URL} refuses with {error.code}: {error.read().decode(errors='replace')}")
except OSError as error:
    sys.exit(f"{URL} cannot be reached: {error}")
