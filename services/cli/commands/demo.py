"""``ringline demo``: the whole ring at work: three processes, one streamed answer, and what ran where; with ``--kill``,
answers that continue after a service is killed.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

import click
import ringline

from services.cli.commands.engine import engine_config
from services.cli.commands.serve import bundled_model, stack_options
from services.cli.supervise.child_logs import ChildLogs
from services.cli.supervise.runtime_directory import StackState, running_stacks
from services.cli.supervise.stack import ReadyStack, run_stack
from services.common.config.errors import ExitCode, FatalError
from services.common.config.flags import Command
from services.common.config.settings import ProcessorSettings, ServerSettings, TelemetrySettings
from services.common.config.stack_settings import StackSettings
from services.common.telemetry.logs import configure_logs

PROMPT_OF_MANY = "Once upon a time"
REQUESTS = 64
_SECONDS = 5.0
"""Duration of the undisturbed run; longer if an answer has too few tokens by then."""
_MIN_TOKENS = 6
_TICK = 0.25
"""Seconds without text after which a pause is shown."""
PROMPT = "Tell me a story about a fox."
_MAX_TOKENS = 200
_GRACE = 5.0
_ROLES = {
    "processor": "made {prompt} token ids of the question and admitted it",
    "engine": "computed {output} token ids",
    "detokenizer": "turned them into text",
}


@dataclass(slots=True)
class Answer:
    """What a request has received so far."""

    token_ids: list[int] = field(default_factory=list)
    moved: bool = False
    """Whether another process, or a restarted one, took it over."""


async def show_failover(ready: ReadyStack, victim: str, prompt: str) -> bool:
    """Kill the service ``victim`` amid answers; returns whether all equal the undisturbed ones."""
    async with ringline.AsyncClient(ready.address) as client:
        click.echo(f"\n{REQUESTS} requests at once, undisturbed: ", nl=False)
        start = time.monotonic()
        expected = await _undisturbed(client, prompt)
        seconds = time.monotonic() - start
        tokens = sum(len(answer.token_ids) for answer in expected)
        click.echo(f"{tokens:,} tokens in {seconds:.1f} s")
        click.echo(f"The same requests again; this is the first of them. The {victim} will be killed:\n")
        click.echo(prompt, nl=False)
        answers = [Answer() for _ in expected]
        shown, *others = [
            _events(client, prompt, seed, answer, len(wanted.token_ids))
            for seed, (answer, wanted) in enumerate(zip(answers, expected, strict=True))
        ]
        showing = _show(shown, victim, answers[0], len(expected[0].token_ids) // 3, seconds / 3)
        waited, *_ = await asyncio.gather(showing, *(_exhaust(other) for other in others))
    same = sum(answer.token_ids == wanted.token_ids for answer, wanted in zip(answers, expected, strict=True))
    if moved := sum(answer.moved for answer in answers):
        click.echo(f"\n\n{moved} requests were taken over by the new {victim}.", nl=False)
    elif not waited:
        click.echo("\n\nNo pause was seen: the answers had been computed before the kill. Try again.", nl=False)
    click.echo(f"\n\n{REQUESTS} answers of {tokens:,} tokens, each compared with the undisturbed one: ", nl=False)
    click.echo("the same" if same == REQUESTS else f"{REQUESTS - same} DIFFER")
    return same == REQUESTS


async def _undisturbed(client: ringline.AsyncClient, prompt: str) -> Sequence[Answer]:
    """The output that requests receive within some seconds; then they are cancelled."""
    answers = [Answer() for _ in range(REQUESTS)]
    tasks = [
        asyncio.create_task(_exhaust(_events(client, prompt, seed, answer))) for seed, answer in enumerate(answers)
    ]
    try:
        _, running = await asyncio.wait(tasks, timeout=_SECONDS)
        while running and min(len(answer.token_ids) for answer in answers) < _MIN_TOKENS:
            _, running = await asyncio.wait(running, timeout=_TICK)
    finally:
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
    for error in ended:
        if isinstance(error, Exception):
            raise error
    return answers


async def _events(
    client: ringline.AsyncClient, prompt: str, seed: int, answer: Answer, max_tokens: int | None = None
) -> AsyncIterator[str]:
    """Send one request; fills ``answer`` and yields the text as it arrives."""
    options: ringline.Options = {"seed": seed, "temperature": 0.8, "ignore_eos": True, "max_tokens": max_tokens}
    async with client.stream(prompt, **options) as stream:
        async for event in stream.events():
            if isinstance(event, ringline.Delta):
                answer.token_ids.extend(event.token_ids)
                yield event.text
            elif isinstance(event, ringline.Started):
                answer.moved |= bool(event.reason)
            elif isinstance(event, ringline.Resumed):
                answer.moved = True


async def _exhaust(texts: AsyncIterator[str]) -> None:
    async for _ in texts:
        pass


async def _show(texts: AsyncIterator[str], victim: str, answer: Answer, tokens: int, seconds: float) -> bool:
    """Print one answer as it arrives, and kill ``victim`` after ``tokens`` or ``seconds``; returns whether it paused.

    The time limit helps on a busy machine, where this process may print long after the engine has computed.
    """
    start, killed, waited = time.monotonic(), False, False
    coming = asyncio.ensure_future(anext(texts, None))
    while True:
        since, shown = time.monotonic(), False
        while not (await asyncio.wait({coming}, timeout=_TICK))[0]:
            if killed and (shown or not waited):  # later pauses have other causes
                click.echo("." if shown else "\n\n  the stream waits .", nl=False)
                waited = shown = True
        text = coming.result()
        if shown:
            pause = time.monotonic() - since
            click.echo(f" {pause:.1f} s. The {victim} is process {_pid(victim)} now, and the stream goes on:\n")
        if text is None:
            return waited
        click.echo(text, nl=False)
        if not killed and (len(answer.token_ids) >= tokens or time.monotonic() - start >= seconds):
            killed, pid = True, _pid(victim)
            os.kill(pid, signal.SIGKILL)
            click.echo(f"\n\n  kill -9 {pid}: the {victim} is dead\n")
        coming = asyncio.ensure_future(anext(texts, None))


def _pid(service: str) -> int:
    """The present pid of a service of this process's own stack."""
    return next(stack.services[service].pid for stack in running_stacks() if stack.pid == os.getpid())


@click.command(cls=Command)
@click.option("--prompt", help="What to ask; with --kill, a text to continue.")
@click.option("--model", help="Checkpoint, as `ringline serve` takes it. Default: the bundled one.")
@click.option(
    "--kill",
    "victim",
    is_flag=False,
    flag_value="engine",
    type=click.Choice(list(_ROLES)),
    help="Kill a service, the engine if none is named, in the middle of answers; compare them with undisturbed ones.",
)
def demo(prompt: str | None, model: str | None, victim: str | None) -> int:
    """Start the three services on free ports, stream an answer through them, show what ran where, and stop."""
    model = model or bundled_model()
    settings = ProcessorSettings(server=ServerSettings(port=0), telemetry=TelemetrySettings(metrics=False))
    configure_logs(TelemetrySettings(log_format="console", log_level="warning" if victim is None else "error"), "demo")
    engine_config({"model": model})
    logs = ChildLogs(as_json=False, quiet=True)
    answered = False

    async def show(ready: ReadyStack) -> int:
        nonlocal answered
        logs.ready(f"  ready in {ready.seconds:.1f} s")
        same = True
        try:
            if victim is None:
                await _show_answer(ready, prompt or PROMPT)
            else:
                same = await show_failover(ready, victim, prompt or PROMPT_OF_MANY)
        except ringline.RingError as error:
            raise FatalError(f"the request failed: {error}", ExitCode.FAILURE) from None
        answered = True
        return ExitCode.OK if same else ExitCode.FAILURE

    click.echo(f"starting an engine, a detokenizer and a processor with {model}")
    options = stack_options(settings, StackSettings(http=False), {"model": model})
    code = asyncio.run(run_stack(options, logs, grace=_GRACE, on_ready=show))
    if code == ExitCode.OK and not answered:  # stopped by a signal before it had shown anything
        raise click.Abort
    return code


async def _show_answer(ready: ReadyStack, prompt: str) -> None:
    """Stream the answer to ``prompt`` to the terminal, and say what ran where."""
    click.echo(f"\n> {prompt}\n")
    start = time.perf_counter()
    first = last = 0.0
    async with ringline.AsyncClient(ready.address) as client:
        messages: list[ringline.Message] = [{"role": "user", "content": prompt}]
        stream = client.stream(messages=messages, temperature=0.0, max_tokens=_MAX_TOKENS)
        async for delta in stream:
            last = time.perf_counter() - start
            first = first or last
            sys.stdout.write(delta.text)
            sys.stdout.flush()
        click.echo()
        click.echo("\n" + report(ready.state, (await stream.result()).usage, first, last))


def report(state: StackState, usage: ringline.Usage, first_token: float, last_token: float) -> str:
    """What ran where, and how fast. Times are in seconds since the request."""
    lines = []
    for name, role in _ROLES.items():
        process = state.services[name]
        did = role.format(prompt=usage.prompt_tokens, output=usage.completion_tokens)
        lines.append(f"  {name:<12} pid {process.pid:<8} {did}\n  {'':<12} {process.address}")
    # Counted from the request: the first delta may hold many tokens, and several may arrive at once.
    speed = usage.completion_tokens / last_token if last_token > 0 else 0.0
    lines.append(
        f"  first token after {first_token * 1000:.0f} ms, "
        f"{usage.completion_tokens} tokens in {last_token:.2f} s, the prompt included: {speed:.0f} tokens/s"
    )
    return "\n".join(lines)
