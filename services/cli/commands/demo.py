"""``ringline demo``: the whole ring at work: three processes, one streamed answer, and what ran where; with ``--kill``,
answers that continue after a service is killed.
"""

from __future__ import annotations

import asyncio
import itertools
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
CLIENTS = 64
_FIRST_SEED = 64
"""With this and the following ones, the bundled model begins with stories that read well."""
_SECONDS = 5.0
"""Duration of the undisturbed run; longer if a client has too few tokens by then."""
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

    seed: int
    max_tokens: int | None = None
    token_ids: list[int] = field(default_factory=list)
    moved: bool = False
    """Whether another process, or a restarted one, took it over."""


async def show_failover(ready: ReadyStack, victim: str, prompt: str) -> bool:
    """Kill the service ``victim`` amid answers; returns whether all equal the undisturbed ones."""
    async with ringline.AsyncClient(ready.address) as client:
        click.echo(f"\n{CLIENTS} clients at once, one request after another each, undisturbed: ", nl=False)
        start = time.monotonic()
        expected = await _undisturbed(client, prompt)
        seconds = time.monotonic() - start
        wanted = [answer for answers in expected for answer in answers]
        tokens = sum(len(answer.token_ids) for answer in wanted)
        click.echo(f"{len(wanted):,} answers, {tokens:,} tokens in {seconds:.1f} s")
        click.echo(f"The same requests again; these are the first client's. The {victim} will be killed:\n")
        again = [[Answer(answer.seed, len(answer.token_ids)) for answer in answers] for answers in expected]
        shown, *others = [_texts(client, prompt, answers) for answers in again]
        third = sum(len(answer.token_ids) for answer in expected[0]) // 3
        showing = _show(shown, victim, again[0], third, seconds / 3)
        waited, *_ = await asyncio.gather(showing, *(_exhaust(other) for other in others))
    received = [answer for answers in again for answer in answers]
    same = sum(answer.token_ids == other.token_ids for answer, other in zip(received, wanted, strict=True))
    if moved := sum(answer.moved for answer in received):
        click.echo(f"\n\n{moved} requests were taken over by the new {victim}.", nl=False)
    elif not waited:
        click.echo("\n\nNo pause was seen: the answers had been computed before the kill. Try again.", nl=False)
    click.echo(f"\n\n{len(wanted):,} answers of {tokens:,} tokens, each compared with the undisturbed one: ", nl=False)
    click.echo("the same" if same == len(wanted) else f"{len(wanted) - same} DIFFER")
    return same == len(wanted)


async def _undisturbed(client: ringline.AsyncClient, prompt: str) -> Sequence[Sequence[Answer]]:
    """The answers that each client receives within some seconds; then those under way are cancelled.

    Answers end where the model ends them, as it writes nonsense beyond: so a client sends one request after another.
    """
    answers: list[list[Answer]] = [[] for _ in range(CLIENTS)]

    async def ask(place: int) -> None:
        for seed in itertools.count(_FIRST_SEED + place, CLIENTS):
            answers[place].append(Answer(seed))
            await _exhaust(_texts(client, prompt, answers[place][-1:]))

    def is_short(received: Sequence[Answer]) -> bool:
        return len(received) < _MIN_TOKENS and sum(len(answer.token_ids) for answer in received) < _MIN_TOKENS

    tasks = [asyncio.create_task(ask(place)) for place in range(CLIENTS)]
    try:
        failed, _ = await asyncio.wait(tasks, timeout=_SECONDS, return_when=asyncio.FIRST_EXCEPTION)
        while not failed and any(map(is_short, answers)):
            failed, _ = await asyncio.wait(tasks, timeout=_TICK, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
    for error in ended:
        if isinstance(error, Exception):
            raise error
    return [[answer for answer in received if answer.token_ids] for received in answers]


async def _texts(client: ringline.AsyncClient, prompt: str, answers: Sequence[Answer]) -> AsyncIterator[str]:
    """Send one request after another; fills ``answers``, and yields prompts and their texts as these arrive."""
    gap = ""
    for answer in answers:
        unshown, gap = f"{gap}{prompt}", "\n\n"
        options: ringline.Options = {"seed": answer.seed, "max_tokens": answer.max_tokens}
        async with client.stream(prompt, **options) as stream:
            async for event in stream.events():
                if isinstance(event, ringline.Delta):
                    answer.token_ids.extend(event.token_ids)
                    yield unshown + event.text
                    unshown = ""
                elif isinstance(event, ringline.Started):
                    answer.moved |= bool(event.reason)
                elif isinstance(event, ringline.Resumed):
                    answer.moved = True


async def _exhaust(texts: AsyncIterator[str]) -> None:
    async for _ in texts:
        pass


async def _show(texts: AsyncIterator[str], victim: str, answers: Sequence[Answer], tokens: int, seconds: float) -> bool:
    """Print ``answers`` as they arrive, and kill ``victim`` after ``tokens`` or ``seconds``; returns whether they
    paused.

    The time limit helps on a busy machine, where this process may print long after the engine has computed.
    """
    start, pid, waited, on_its_way = time.monotonic(), 0, False, False
    coming = asyncio.ensure_future(anext(texts, None))
    while True:
        since, shown = time.monotonic(), False
        while not (await asyncio.wait({coming}, timeout=_TICK))[0]:
            if pid and (shown or not waited):  # later pauses have other causes
                click.echo("." if shown else "\n\n  the stream waits .", nl=False)
                waited = shown = True
        text = coming.result()
        if shown and (now := _pid(victim)) != pid:
            pause = time.monotonic() - since
            click.echo(f" {pause:.1f} s. The {victim} is process {now} now, and the stream goes on:\n")
        elif shown or (pid and not waited and not on_its_way and text is not None):
            click.echo("\n\n" * shown + "  What was on its way still arrives:\n")
            waited, on_its_way = False, True
        if text is None:
            return waited
        click.echo(text, nl=False)
        received = sum(len(answer.token_ids) for answer in answers)
        if not pid and (received >= tokens or time.monotonic() - start >= seconds):
            pid = _pid(victim)
            os.kill(pid, signal.SIGKILL)
            click.echo(f"\n\n  kill -9 {pid}: the {victim} is dead")
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
