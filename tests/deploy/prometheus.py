"""A real Prometheus for tests: scrapes the processes of a ring, and answers queries."""

from __future__ import annotations

import json
import re
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.programs import program
from tests.ring import Ring

START_TIMEOUT = 120.0


class Prometheus:
    """One that runs."""

    def __init__(self, url: str) -> None:
        self._url = url

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The series that an expression has now."""
        return self._ask("query", expression)

    def query_range(self, expression: str, begin: float, end: float, step: float) -> list[dict[str, Any]]:
        """The series that it had in a time, seconds since the epoch, each ``step`` of them."""
        return self._ask("query_range", expression, start=begin, end=end, step=step)

    def _ask(self, kind: str, expression: str, **more: float) -> list[dict[str, Any]]:
        data = urllib.parse.urlencode({"query": expression, **more}).encode()
        try:
            with urllib.request.urlopen(f"{self._url}/api/v1/{kind}", data, timeout=60) as answer:
                return json.load(answer)["data"]["result"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{expression}: {error.read().decode()}") from None


@contextmanager
def scraping(ring: Ring, directory: Path) -> Iterator[Prometheus]:
    """Scrape every service of a ring each second, as a job of the service's name."""
    jobs = [
        {"job_name": name, "static_configs": [{"targets": [urllib.parse.urlsplit(service.metrics or "").netloc]}]}
        for name, service in ring.state.services.items()
    ]
    config = directory / "prometheus.yml"  # JSON is YAML
    config.write_text(json.dumps({"global": {"scrape_interval": "1s"}, "scrape_configs": jobs}))
    log = directory / "prometheus.log"
    command = [program("prometheus", "prometheus"), f"--config.file={config}"]
    command += [f"--storage.tsdb.path={directory / 'data'}", "--web.listen-address=127.0.0.1:0"]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        yield Prometheus(f"http://{_address(process, log)}")
    finally:
        process.kill()
        process.wait()


def _address(process: subprocess.Popen[bytes], log: Path) -> str:
    """Where it listens, by its log, once it is ready."""
    end = time.monotonic() + START_TIMEOUT
    while time.monotonic() < end and process.poll() is None:
        text = log.read_text()
        found = re.search(r'msg="Listening on" address=(\S+)', text)
        if found is not None and "ready to receive web requests" in text:
            return found[1]
        time.sleep(0.05)
    raise AssertionError(f"Prometheus did not start:\n{log.read_text()[-4000:]}")
