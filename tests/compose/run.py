"""Checks on a real Docker engine what compose.yaml promises, step by step."""

from __future__ import annotations

import asyncio
import json
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Collection, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from pathlib import Path

from ringline import Client, Options, Unavailable

from tests.chaos.load import ClosedLoop, Tally, connect, record_answers
from tests.chaos.workload import pool
from tests.compose.engine import KINDS, PROFILES, RING, Failed, Stack, inspect, kill, own_bytes, run, stop_service

Step = Callable[[Stack, Path], None]
CPU_TIERS = ("processor", "detokenizer", "gateway")
LARGEST_CPU_TIER = 130 * 10**6
"""Bytes that the image of a CPU tier may add to its base: it has neither torch nor a compiler."""
ONE = dict.fromkeys(KINDS, 1)
TWO = dict.fromkeys(KINDS, 2)
SEED = 7
KINDS_OF_REQUESTS = ("greedy", "seeded", "ends", "long")
"""Those that take longest."""
CLIENTS = 2
CONCURRENCY = 12
MAX_KILLS = 5
LONG_WORK = Options(n=32, max_tokens=1500, ignore_eos=True, temperature=0.9, seed=7)
"""An answer that takes longer than it takes to disturb it."""

PROBE = """
import importlib.util, os, sys
heavy = [name for name in ("torch", "transformers") if importlib.util.find_spec(name)]
try:
    open("/probe", "w")
    writable = True
except OSError:
    writable = False
print(os.getuid(), writable, ",".join(heavy))
"""

CERTIFICATES = """
import hashlib, os, pathlib
files = sorted(str(path) for path in pathlib.Path("/certs").rglob("*") if not path.is_dir())
(key,) = (text for text in (pathlib.Path(path).read_bytes() for path in files) if b"PRIVATE KEY" in text)
print(*files, hashlib.sha256(key).hexdigest(), os.getuid(), sep="\\n")
"""


def say(text: str) -> None:
    print(text, flush=True)


def check(holds: bool, text: str) -> None:
    """Print ``text`` if it holds; else fail."""
    if not holds:
        raise Failed(f"not so: {text}")
    say(f"  {text}")


def build(stack: Stack) -> None:
    """Build the images, and check their sizes."""
    start = time.monotonic()
    replace(stack, profiles=PROFILES)("build", timeout=3600)
    say(f"built in {time.monotonic() - start:.0f} s")
    for kind in (*KINDS, "engine-ray"):
        size, own = int(inspect(stack.image(kind), "{{.Size}}")), own_bytes(stack.image(kind))
        say(f"  {stack.image(kind)}: {size / 10**6:.0f} MB, of which {own / 10**6:.0f} MB are not its base's")
        if kind in CPU_TIERS and own > LARGEST_CPU_TIER:
            raise Failed(f"the {kind}'s image adds more than {LARGEST_CPU_TIER / 10**6:.0f} MB to its base")


def start(stack: Stack, counts: dict[str, int]) -> None:
    """Start ``counts`` of each service, and wait until all are healthy and linked."""
    begun = time.monotonic()
    scales = [word for kind, count in counts.items() for word in ("--scale", f"{kind}={count}")]
    stack("up", "-d", "--no-build", *scales)
    stack.wait_healthy(counts)
    stack.wait_linked(counts)
    say(f"{counts} healthy and linked after {time.monotonic() - begun:.1f} s")


def look_inside(stack: Stack) -> None:
    """Check user, file system, packages, memory limit and restart policy of each container."""
    for kind in KINDS:
        (container,) = stack.containers(kind)
        user, writable, heavy = (*run("docker", "exec", container, "python", "-c", PROBE).split(" "), "")[:3]
        check(user != "0" and writable == "False", f"{kind}: user {user}, root file system read-only")
        check(kind == "engine" or not heavy, f"{kind}: {heavy or 'no torch, no transformers'}")
        memory, restart = inspect(container, "{{.HostConfig.Memory}} {{.HostConfig.RestartPolicy.Name}}").split()
        check(int(memory) > 0, f"{kind}: at most {int(memory) // 2**20} MiB, restart {restart}")


def generate(stack: Stack, **security: str) -> None:
    """From the host, through the whole stack."""
    with Client(stack.addresses, patience=20, wait_for_ready=True, **security) as client:
        answer = client.generate("Once upon a time", max_tokens=24, temperature=0)
    (choice,) = answer.choices
    check(len(choice.token_ids) == 24, f"generated: {choice.text!r}")


def ask_over_http(stack: Stack, authority: str | None = None) -> None:
    """A chat from the host, by OpenAI's API."""
    scheme, context = ("http", None) if authority is None else ("https", ssl.create_default_context(cafile=authority))
    body = json.dumps({"messages": [{"role": "user", "content": "Once"}], "max_tokens": 24, "temperature": 0}).encode()
    for port in stack.http_ports:
        url = f"{scheme}://localhost:{port}/v1/chat/completions"
        with suppress(ConnectionError, urllib.error.URLError):
            request = urllib.request.Request(url, body, {"content-type": "application/json"})
            with urllib.request.urlopen(request, timeout=60, context=context) as response:
                answer = json.load(response)["choices"][0]["message"]["content"]
            return check(bool(answer), f"answered at {url}: {answer!r}")
    raise Failed(f"no gateway answers at {scheme}://localhost:{stack.http_ports[0]} to {stack.http_ports[-1]}")


async def disturb(stack: Stack) -> None:
    """Under load, kill one of each service and drain one of each: nothing may be lost."""
    specs = [spec for spec in pool(SEED) if spec.name.partition("-")[0] in KINDS_OF_REQUESTS]
    async with AsyncExitStack() as clients:
        connected = [await clients.enter_async_context(connect(",".join(stack.addresses))) for _ in range(CLIENTS)]
        answers = await record_answers(connected[0], specs, CONCURRENCY)
        load = ClosedLoop(connected, specs, answers, seed=SEED, concurrency=CONCURRENCY, pause=0.02)
        for kind in RING[::-1]:
            await kill_until_hit(load, stack, kind)
        for kind in KINDS[::-1]:
            await asyncio.to_thread(stop, stack, kind)
            report(f"stopped: {kind}", load.next_phase())
        await load.stop()
        report("after", load.next_phase())


async def kill_until_hit(load: ClosedLoop, stack: Stack, kind: str) -> None:
    """Kill the busiest until one had requests: its last may end just before the kill."""
    for _ in range(MAX_KILLS):
        had = await asyncio.to_thread(crash, stack, kind)
        moved = report(f"killed: {kind} with {had:.0f} requests", load.next_phase())
        if moved or (kind == "detokenizer" and had):  # a client is not told of another detokenizer
            return
    raise Failed(f"{MAX_KILLS} times no request was hit")


def report(name: str, tally: Tally) -> int:
    """Return how many requests moved; fail if any was lost."""
    moved = tally.moved + tally.resumed
    if tally.defects:
        raise Failed(f"{name}: {dict(tally.defects)}\n" + "\n".join(tally.details))
    check(tally.requests > 0, f"{name}: {tally.requests} requests under load, none lost, {moved} moved")
    return moved


def crash(stack: Stack, kind: str) -> float:
    """Kill the busiest; returns how many requests it had. Its restart policy must bring it back."""
    container, had = stack.busiest(kind)
    before = int(inspect(container, "{{.RestartCount}}"))
    kill(container, stack.image("processor"))
    stack.wait_healthy(TWO)
    stack.wait_linked(TWO)
    check(int(inspect(container, "{{.RestartCount}}")) > before, f"{kind}: started again by its restart policy")
    return had


def stop(stack: Stack, kind: str) -> None:
    """Stop a container: its process must drain and exit by itself. Then start it again."""
    container, _ = stack.busiest(kind)
    run("docker", "stop", "--time", "40", container)
    check(inspect(container, "{{.State.ExitCode}}") == "0", f"{kind}: drained and ended with 0")
    run("docker", "start", container)
    stack.wait_healthy(TWO)
    stack.wait_linked(TWO)


def speak_tls(stack: Stack, directory: Path) -> None:
    """With compose.tls.yaml the processor refuses plaintext, and links use certificates."""
    secured = replace(stack, overrides=("compose.tls.yaml",))
    start(secured, ONE)
    look_at_keys(secured)
    authority = directory / "ca.crt"
    (processor,) = stack.containers("processor")
    authority.write_text(run("docker", "exec", processor, "cat", "/certs/processor/ca.crt"))
    generate(secured, ca=str(authority))
    ask_over_http(secured, str(authority))
    try:
        generate(secured)
    except Unavailable:
        say("  plaintext is refused")
    else:
        raise Failed("plaintext is taken")


def look_at_keys(stack: Stack) -> None:
    """Each container sees only its own certificate and key and the authority's certificate."""
    digests = set()
    for kind in KINDS:
        (container,) = stack.containers(kind)
        *files, digest, user = run("docker", "exec", container, "python", "-c", CERTIFICATES).split()
        seen = [f"/certs/{kind}/{name}" for name in ("ca.crt", "tls.crt", "tls.key")]
        check(files == seen and user != "0", f"{kind}: sees {', '.join(seen)}, as user {user}")
        digests.add(digest)
    check(len(digests) == len(KINDS), "no two services have the same key")


def use_one(stack: Stack) -> None:
    start(stack, ONE)
    look_inside(stack)
    generate(stack)
    ask_over_http(stack)


def hang(stack: Stack) -> None:
    """Stop the engine's process during an answer: its container is replaced, and the answer goes on."""
    start(stack, ONE)
    image = stack.image("processor")
    with Client(stack.addresses, patience=60, wait_for_ready=True) as client:
        undisturbed = client.generate("Once upon a time", **LONG_WORK)
        (container,) = stack.containers("engine")
        restarts = int(inspect(container, "{{.RestartCount}}"))
        tokens: dict[int, list[int]] = {}
        stopped, last, longest = False, time.monotonic(), 0.0
        for delta in client.stream("Once upon a time", **LONG_WORK):
            longest, last = max(longest, time.monotonic() - last), time.monotonic()
            tokens.setdefault(delta.choice, []).extend(delta.token_ids)
            if not stopped:
                stop_service(container, image)
                stopped = True
    check(int(inspect(container, "{{.RestartCount}}")) > restarts, "engine: stopped, and started again")
    stack.wait_healthy(ONE)
    check(
        all(tokens[choice.index] == list(choice.token_ids) for choice in undisturbed.choices),
        f"an answer of {sum(map(len, tokens.values()))} tokens is that of an undisturbed run, and stood still for "
        f"{longest:.1f} s",
    )


def scale(stack: Stack) -> None:
    """Two of each, disturbed under load."""
    start(stack, TWO)
    asyncio.run(disturb(stack))


STEPS: dict[str, Step] = {
    "build": lambda stack, _: build(stack),
    "one": lambda stack, _: use_one(stack),
    "hang": lambda stack, _: hang(stack),
    "scale": lambda stack, _: scale(stack),
    "tls": speak_tls,
}
"""In this order. Each starts what it needs, beside what the one before left running."""


def try_steps(stack: Stack, directory: Path, steps: Mapping[str, Step], names: Collection[str]) -> None:
    """Run the named ``steps`` in order, and remove everything that they started."""
    try:
        for name, step in steps.items():
            if name in names:
                step(stack, directory)
    finally:
        replace(stack, profiles=PROFILES)("down", "--remove-orphans", "--volumes", "--timeout", "10")
    left = run("docker", "ps", "-aq", "--filter", f"label=com.docker.compose.project={stack.project}")
    check(not left, "torn down: no container is left")
