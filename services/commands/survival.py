"""What ``ringline demo --kill`` shows: answers that go on after a service was killed, with the tokens they would have
had.

Requests are sent twice, so many at once that each is slow enough to watch. The first time they run undisturbed for some
seconds; the second time they are to be as long as they were then, and a service is killed in their middle.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

import click
import ringline

from services.runtime.launch import ReadyStack
from services.runtime.run_dir import running_stacks

PROMPT_OF_MANY = "Once upon a time"
REQUESTS = 64
_SECONDS = 5.0
"""Of the undisturbed run: longer, if an answer has too few tokens by then to be killed in its middle."""
_MIN_TOKENS = 6
_TICK = 0.25
"""Seconds without news after which the pause begins to show."""


@dataclass(slots=True)
class Answer:
    """What one request has brought so far."""

    token_ids: list[int] = field(default_factory=list)
    moved: bool = False
    """Whether another process took it over, or the same one after its restart."""


async def survive(ready: ReadyStack, victim: str, prompt: str) -> bool:
    """Show it on the ring at ``ready``, whose ``victim`` is killed; whether every answer is the same."""
    async with ringline.AsyncClient(ready.address) as client:
        click.echo(f"\n{REQUESTS} requests at once, undisturbed: ", nl=False)
        start = time.monotonic()
        expected = await _undisturbed(client, prompt)
        seconds = time.monotonic() - start
        tokens = sum(len(answer.token_ids) for answer in expected)
        click.echo(f"{tokens:,} tokens in {seconds:.1f} s")
        click.echo(f"The same requests again, of which this is the first. The {victim} will be killed:\n")
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
    """What the requests bring within some seconds; then they are cancelled."""
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
    """Send one request; fills ``answer`` and gives the text as it comes."""
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
    """Print one answer as it comes, and kill ``victim`` after so many tokens or seconds; whether that held it up.

    Seconds, too, because on a busy machine this process may be late with what the engine has computed long ago.
    """
    start, killed, waited = time.monotonic(), False, False
    coming = asyncio.ensure_future(anext(texts, None))
    while True:
        since, told = time.monotonic(), False
        while not (await asyncio.wait({coming}, timeout=_TICK))[0]:
            if killed and (told or not waited):  # later pauses have other causes
                click.echo("." if told else "\n\n  the stream waits .", nl=False)
                waited = told = True
        text = coming.result()
        if told:
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
    """Of a service of the stack that this process supervises, now."""
    return next(stack.services[service].pid for stack in running_stacks() if stack.pid == os.getpid())
