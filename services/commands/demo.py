"""``ringline demo``: the whole ring at work, once: three processes, one streamed answer, and what ran where.

With ``--kill`` many answers, and a service killed in their middle (``services.commands.survival``).
"""

from __future__ import annotations

import asyncio
import sys
import time
from dataclasses import dataclass

import click
import ringline

from services.commands.engine import engine_config
from services.commands.serve import bundled_model, stack_options
from services.commands.survival import PROMPT_OF_MANY, survive
from services.runtime.child_logs import ChildLogs
from services.runtime.errors import ExitCode, FatalError
from services.runtime.launch import ReadyStack, run_stack
from services.runtime.run_dir import StackState
from services.runtime.settings import ProcessorSettings, ServerSettings, TelemetrySettings
from services.runtime.telemetry import configure_logs

PROMPT = "Tell me a story about a fox."
_MAX_TOKENS = 200
_GRACE = 5.0

_ROLES = {
    "processor": "made {prompt} token ids of the question and admitted it",
    "engine": "computed {output} token ids",
    "detokenizer": "turned them into text",
}


@dataclass(frozen=True, slots=True)
class _Timing:
    """Of one streamed answer, in seconds from its request."""

    first_token: float
    last_token: float

    def tokens_per_second(self, tokens: int) -> float:
        """From the request on: the first delta may hold many tokens, and several may arrive at once."""
        return tokens / self.last_token if self.last_token > 0 else 0.0


@click.command()
@click.option("--prompt", help="What to ask; with --kill, a text to continue.")
@click.option("--model", help="Checkpoint: a directory or a hub id. Default: the bundled one.")
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
                same = await survive(ready, victim, prompt or PROMPT_OF_MANY)
        except ringline.RingError as error:
            raise FatalError(f"the request failed: {error}", ExitCode.FAILURE) from None
        answered = True
        return ExitCode.OK if same else ExitCode.FAILURE

    click.echo(f"starting an engine, a detokenizer and a processor with {model}")
    options = stack_options(settings, {"model": model})
    code = asyncio.run(run_stack(options, logs, grace=_GRACE, when_ready=show))
    if code == ExitCode.OK and not answered:  # told to stop, in good order, but before it had shown anything
        raise click.Abort
    return code


async def _show_answer(ready: ReadyStack, prompt: str) -> None:
    """One streamed answer, and what ran where."""
    click.echo(f"\n> {prompt}\n")
    generation, timing = await _ask(ready.address, prompt)
    click.echo("\n" + _report(ready.state, generation.usage, timing))


async def _ask(address: str, prompt: str) -> tuple[ringline.Generation, _Timing]:
    """Stream the answer to ``prompt`` to the terminal."""
    start = time.perf_counter()
    first = last = 0.0
    async with ringline.AsyncClient(address) as client:
        messages: list[ringline.Message] = [{"role": "user", "content": prompt}]
        stream = client.stream(messages=messages, temperature=0.0, max_tokens=_MAX_TOKENS)
        async for delta in stream:
            last = time.perf_counter() - start
            first = first or last
            sys.stdout.write(delta.text)
            sys.stdout.flush()
        click.echo()
        return await stream.result(), _Timing(first, last)


def _report(state: StackState, usage: ringline.Usage, timing: _Timing) -> str:
    lines = []
    for name, role in _ROLES.items():
        process = state.services[name]
        did = role.format(prompt=usage.prompt_tokens, output=usage.completion_tokens)
        lines.append(f"  {name:<12} pid {process.pid:<8} {did}\n  {'':<12} {process.address}")
    speed = timing.tokens_per_second(usage.completion_tokens)
    lines.append(
        f"  first token after {timing.first_token * 1000:.0f} ms, "
        f"{usage.completion_tokens} tokens in {timing.last_token:.2f} s, the prompt included: {speed:.0f} tokens/s"
    )
    return "\n".join(lines)
