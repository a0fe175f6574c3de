"""Starts a ring of what is installed, asks it, and prints what it answered: as a program of the tried environment.

``python -c THIS ENGINE_COMMAND``: a JSON list, what runs an engine; the other services, and the client, run by this
Python. Prints JSON.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ringline import Client, Delta, RingError, Started, TokenLogprob

from services.cli.commands.serve import bundled_model

PROMPTS = ("Once upon a time", "The little dog", "Write about a boat.", "One day, Tim and his friend")
START_SECONDS = 900.0
"""An emulated engine takes minutes."""


def main() -> None:
    engine_command: list[str] = json.loads(sys.argv[1])
    if compiler := shutil.which("g++"):
        sys.exit(f"{compiler} is on the PATH: the environment was to be without a compiler")
    engine, detokenizer, processor = (f"127.0.0.1:{port}" for port in free_ports(3))
    python, started = [sys.executable], time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log")
        services = [
            start(engine_command, log, "engine", engine, bundled_model(), "--max-num-seqs", "8"),
            start(python, log, "detokenizer", detokenizer, "--engines", engine),
            start(python, log, "processor", processor, "--engines", engine, "--detokenizers", detokenizer),
        ]
        try:
            print(json.dumps(ask(processor, services, log, started)))
        finally:
            for service in services:
                service.terminate()
            for service in services:
                service.wait(60)


def free_ports(count: int) -> list[int]:
    holders = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [holder.getsockname()[1] for holder in holders]
    for holder in holders:
        holder.close()
    return ports


def start(python: list[str], log: Path, kind: str, address: str, *flags: str) -> subprocess.Popen[bytes]:
    command = [*python, "-m", "services.cli", kind, "--port", address.rpartition(":")[2], *flags]
    with log.open("ab") as stream:
        return subprocess.Popen(command, stdout=stream, stderr=stream)


def ask(address: str, services: list[subprocess.Popen[bytes]], log: Path, started: float) -> dict[str, object]:
    """Every prompt, with log probabilities: what they digest to are the model's bits."""
    bits, numerics, first_token = hashlib.blake2b(digest_size=8), set(), 0.0
    with Client(address) as client:
        wait_for_model(client, services, log, started)
        for prompt in PROMPTS:
            logprobs: list[TokenLogprob] = []  # of all deltas together, as how many tokens one has is chance
            for event in client.stream(prompt, temperature=0.0, max_tokens=24, logprobs=3, ignore_eos=True).events():
                if isinstance(event, Started):
                    numerics.add(event.numerics)
                elif isinstance(event, Delta):
                    first_token = first_token or time.monotonic() - started
                    logprobs += event.logprobs or ()
            bits.update(repr(logprobs).encode())
    found = re.search(r"attention by native kernels for (\w+)", log.read_text(errors="replace"))
    return {
        "instruction_set": found[1] if found else "none: torch computes",
        "first_token": first_token,
        "numerics": " ".join(numerics),
        "bits": bits.hexdigest(),
        "user": os.geteuid(),
    }


def wait_for_model(client: Client, services: list[subprocess.Popen[bytes]], log: Path, started: float) -> None:
    while time.monotonic() < started + START_SECONDS:
        if any(service.poll() is not None for service in services):
            break
        try:
            if client.models():
                return
        except RingError:  # no engine yet
            pass
        time.sleep(0.1)
    sys.exit(f"no model after {time.monotonic() - started:.0f} s:\n{log.read_text(errors='replace')[-4000:]}")


if __name__ == "__main__":
    main()
