"""``ringline generate``: one request, streamed to the terminal or printed as one JSON object."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import ringline

from services.cli.commands._beams import beam_options, with_beam_search
from services.cli.commands._connection import Connection, closed_by_interrupt
from services.cli.commands._forms import TOOLS_FILE, check_form, form_options, has_form, tools_option
from services.cli.commands._options import (
    PATIENCE,
    ClientCommand,
    addresses_option,
    connection_options,
    generation_options,
    server_errors,
    to_options,
    token_ids,
    usage_errors,
)
from services.cli.commands._parts import AnswerPrinter

EXAMPLES = """\b
Examples:
  ringline generate "Once upon a time" --max-tokens 32
  ringline generate "Once upon a time" --max-tokens 32 --beams 4 --n 2
  ringline generate "Is 7 prime?" --chat --choice yes --choice no
  ringline generate "Name colours." --chat --json-schema '{"type": "array", "items": {"type": "string"}}'
  ringline generate "What is 3 plus 4?" --chat --tools tools.json --tool-choice required
  ringline generate "What is written here?" --image page.png --temperature 0
"""


@click.command("generate", cls=ClientCommand, epilog=f"{EXAMPLES}\n{TOOLS_FILE}")
@click.argument("prompt", required=False)
@addresses_option
@connection_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object when the answer is complete.")
@click.option("--chat", is_flag=True, help="Send PROMPT as a user's message, by the model's chat template.")
@click.option("--system", help="With --chat: the system message.")
@click.option(
    "--image",
    "images",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    multiple=True,
    metavar="FILE",
    help="A picture before PROMPT, with --chat, which it implies; several if repeated. PROMPT may be left out.",
)
@click.option(
    "--token-ids", "ids", type=token_ids, metavar="ID,ID,…", help="Token ids to continue, in place of PROMPT."
)
@click.option("--n", type=int, help="Number of choices.")
@click.option(
    "--logprobs", type=int, help="With --json: log probabilities of each output token and of this many alternatives."
)
@click.option("--prompt-logprobs", type=int, help="With --json: the same for the tokens of the prompt.")
@form_options
@tools_option
@click.option("--tool-choice", metavar="TEXT", help="auto, none, required, or the name of the tool to call.")
@beam_options
@generation_options
def generate(
    prompt: str | None,
    address: str,
    connection: Connection,
    as_json: bool,
    chat: bool,
    system: str | None,
    images: tuple[Path, ...],
    ids: list[int] | None,
    **flags: Any,
) -> None:
    """Continue PROMPT; "-" reads it from standard input (without its last newline)."""
    if images:
        if ids is not None:
            raise click.UsageError("--image and --token-ids exclude each other: give one of them.")
        chat, prompt = True, prompt or ""
    if prompt is None and ids is None:
        raise click.UsageError("PROMPT is missing: give a text, or --token-ids.")
    if prompt is not None and ids is not None:
        raise click.UsageError("PROMPT and --token-ids exclude each other: give one of them.")
    if chat and prompt is None:
        raise click.UsageError("--chat needs PROMPT, not --token-ids.")
    if system is not None and not chat:
        raise click.UsageError("--system needs --chat.")
    if not chat and (flags["tools"] is not None or flags["tool_choice"] is not None):
        raise click.UsageError("--tools and --tool-choice need --chat.")
    if flags["tools"] is None and flags["tool_choice"] is not None:
        raise click.UsageError("--tool-choice needs --tools.")
    check_form(flags)
    options = to_options(with_beam_search(flags))
    if not as_json and not options.keys().isdisjoint(("logprobs", "prompt_logprobs")):
        raise click.UsageError("--logprobs and --prompt-logprobs need --json, which shows them.")
    if "max_reasoning_tokens" in options and "parse" not in options and flags["tools"] is None:
        raise click.UsageError("--max-reasoning-tokens needs --reasoning-format, which says how reasoning ends.")
    if "prompt_logprobs" in options:
        options["return_prompt_token_ids"] = True
    text = sys.stdin.read().removesuffix("\n") if prompt == "-" else prompt
    messages = _messages(system, images, text) if chat and text is not None else None
    with usage_errors(connection):
        client = ringline.Client(address, patience=PATIENCE, **connection.for_client())
    with client:
        with usage_errors():
            stream = client.stream(None if chat else text, messages=messages, token_ids=ids, **options)
        with server_errors(address, connection), stream, closed_by_interrupt(stream):
            if as_json:
                click.echo(json.dumps(to_json(stream.result()), ensure_ascii=False))
            elif options.get("n", 1) == 1:
                _print_stream(stream)
                if has_form(flags) and stream.result().finish_reason is ringline.FinishReason.LENGTH:
                    click.echo(
                        "Cut off by --max-tokens or the context's length: only the beginning of an answer.", err=True
                    )
            else:
                for choice in stream.result().choices:
                    click.echo(f"[{choice.index}] {choice.text}")


def _messages(system: str | None, images: Sequence[Path], text: str) -> list[ringline.Message]:
    messages: list[ringline.Message] = [] if system is None else [{"role": "system", "content": system}]
    messages.append({"role": "user", "content": [*images, *([text] if text else [])] if images else text})
    return messages


def to_json(generation: ringline.Generation) -> dict[str, Any]:
    """The first choice's fields and the usage; all choices if there are several."""
    usage = asdict(generation.usage)
    for name in ("reasoning_tokens", "media_tokens", "accepted_draft_tokens", "rejected_draft_tokens"):
        if not usage[name]:
            del usage[name]
    document = _choice_json(generation.choices[0]) | {
        "usage": usage,
        "model": generation.request.model,
        "seed": generation.request.options.get("seed"),
    }
    if generation.prompt_logprobs is not None:
        prompt_ids = generation.request.prompt_token_ids or ()
        document["prompt_token_ids"] = prompt_ids
        document["prompt_logprobs"] = _logprobs_json(prompt_ids[1:], generation.prompt_logprobs)
    if len(generation.choices) > 1:
        document["choices"] = [{"index": choice.index} | _choice_json(choice) for choice in generation.choices]
    return document


def _choice_json(choice: ringline.Choice) -> dict[str, Any]:
    document: dict[str, Any] = {
        "text": choice.text,
        "token_ids": choice.token_ids,
        "finish_reason": choice.finish_reason,
        "stop": choice.stop,
    }
    if choice.reasoning is not None or choice.tool_calls:
        document["content"] = choice.content
        document["reasoning"] = choice.reasoning
        document["tool_calls"] = [asdict(call) for call in choice.tool_calls]
    if choice.beam_score is not None:
        document["beam_score"] = choice.beam_score
    if choice.logprobs is not None:
        document["logprobs"] = _logprobs_json(choice.token_ids, choice.logprobs)
    return document


def _logprobs_json(token_ids: Sequence[int], logprobs: Sequence[ringline.TokenLogprob]) -> list[dict[str, Any]]:
    return [
        {
            "token_id": token_id,
            "logprob": _finite(entry.logprob),
            "rank": entry.rank,
            "top": [{"token_id": other, "logprob": _finite(value)} for other, value in entry.top],
        }
        for token_id, entry in zip(token_ids, logprobs, strict=True)
    ]


def _finite(value: float) -> float | None:
    """None for infinities, which JSON lacks."""
    return value if math.isfinite(value) else None


def _print_stream(stream: ringline.Stream) -> None:
    printer = AnswerPrinter(stream)
    try:
        for delta in stream:
            printer.show(delta)
    finally:
        printer.end()  # so that an error does not follow the text
