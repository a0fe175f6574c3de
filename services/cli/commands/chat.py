"""``ringline chat``: a conversation at the terminal, or with lines from a pipe."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import ringline
from ringline.content_parts import MAX_PICTURE_FILE_BYTES

from services.cli.commands._connection import Connection, closed_by_interrupt
from services.cli.commands._forms import TOOLS_FILE, tools_option
from services.cli.commands._options import (
    PATIENCE,
    ClientCommand,
    addresses_option,
    connection_options,
    describe,
    generation_options,
    server_errors,
    to_options,
    usage_errors,
)
from services.cli.commands._parts import AnswerPrinter

HELP = (
    "/system TEXT sets the system message, /image FILE adds a picture to the next message, /reset begins a new "
    "conversation, /exit ends; Ctrl-C stops an answer."
)
TOOLS_HELP = """With --tools, chat shows each call that the model makes, and asks you for its result: any text, such as
JSON. From a pipe, the next line is the result.

\b
  ringline chat --tools tools.json
  printf 'What is 3 plus 4?\\n7\\n' | ringline chat --tools tools.json
"""


@click.command("chat", cls=ClientCommand, epilog=f"{HELP}\n\n{TOOLS_HELP}\n{TOOLS_FILE}")
@addresses_option
@connection_options
@click.option("--system", help="The system message.")
@tools_option
@generation_options
def chat(address: str, connection: Connection, system: str | None, **flags: Any) -> None:
    """Talk to the model."""
    with usage_errors(connection):
        client = ringline.Client(address, patience=PATIENCE, **connection.for_client())
    with client:
        with server_errors(address, connection):
            served = {model.name: model for model in client.models()}
        if not served:
            raise click.ClickException(
                f"no engine is attached at {address}, so no model is served; `ringline status` shows what is missing"
            )
        able = [model for model in served.values() if model.pooling is None]
        name = flags["model"]
        model = next(iter(able or served.values())) if name is None else _named(name, served.values())
        if model is None:
            raise click.ClickException(
                f"model {flags['model']!r} is not served at {address}; served: {', '.join(served)}"
            )
        if model.pooling is not None:
            raise click.ClickException(f"model {model.name!r} generates no text; `ringline status` says what it is for")
        if not model.has_chat_template:
            raise click.ClickException(
                f"model {model.name!r} has no chat template; `ringline generate` continues plain text without one"
            )
        options = to_options(flags)
        if "parse" in model.capabilities:
            options.setdefault("parse", True)
        asks = _ask_for_result if sys.stdin.isatty() else _read_result
        sees = "media" in model.capabilities
        conversation = Conversation(client, address, connection, system, options, asks, sees_pictures=sees)
        if sys.stdin.isatty():
            click.echo(f"{model.name} at {address}. {HELP}", err=True)
            _talk(conversation)
        else:
            for line in sys.stdin:
                if not conversation.take(line, keep_going=False):
                    break


def _named(name: str, models: Iterable[ringline.Model]) -> ringline.Model | None:
    """The model of a name, which may be that of an adapter, alone or behind the model's."""
    for model in models:
        adapters = (each.name for each in model.adapters)
        if name == model.name or any(name in (each, f"{model.name}:{each}") for each in adapters):
            return model
    return None


def _talk(conversation: Conversation) -> None:
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 (gives input() a history and editing)
    while True:
        try:
            line = input("> ")
        except KeyboardInterrupt:
            click.echo(err=True)
            continue
        except EOFError:
            click.echo(err=True)
            return
        if not conversation.take(line, keep_going=True):
            return


def _ask_for_result(call: ringline.ToolCall) -> str | None:
    """Ask at the terminal; None if the user gives no result."""
    try:
        return input(f"result of {call.name}> ")
    except (EOFError, KeyboardInterrupt):
        click.echo(err=True)
        return None


def _read_result(call: ringline.ToolCall) -> str | None:
    """The next line of a pipe."""
    line = sys.stdin.readline()
    if not line:
        raise click.ClickException(f"the input ended before the result of {call.name}: expected a line with it")
    return line.removesuffix("\n")


@dataclass(slots=True)
class Conversation:
    """The messages so far, and settings for the next answer."""

    client: ringline.Client
    address: str
    connection: Connection
    system: str | None
    options: ringline.Options
    result_of: Callable[[ringline.ToolCall], str | None]
    """Returns a call's result; None withdraws the user's message."""
    messages: list[ringline.Message] = field(default_factory=list)
    sees_pictures: bool = False
    pictures: list[bytes] = field(default_factory=list)
    """Of the next message."""

    def take(self, line: str, keep_going: bool) -> bool:
        """Handle a line of input; returns whether to go on. A failed answer raises unless ``keep_going``."""
        text = line.strip()
        command, _, argument = text.partition(" ")
        if command == "/exit":
            return False
        if command == "/reset":
            self.messages.clear()
            self.pictures.clear()
        elif command == "/image":
            self._add_picture(argument.strip(), keep_going)
        elif command == "/system":
            self.system = argument.strip() or None
        elif command.startswith("/"):
            click.echo(f"unknown command {command}. {HELP}", err=True)
        elif text:
            self._answer(text, keep_going)
        return True

    def _add_picture(self, name: str, keep_going: bool) -> None:
        """Read a picture for the next message, and say what it is. A failure raises unless ``keep_going``."""
        path = Path(name.strip("'\"")).expanduser()
        try:
            if not self.sees_pictures:
                raise OSError("the model takes no pictures: serve one that does, such as a vision model")
            with path.open("rb") as file:
                data = file.read(MAX_PICTURE_FILE_BYTES + 1)
            if not 0 < len(data) <= MAX_PICTURE_FILE_BYTES:
                what = f"has more than {MAX_PICTURE_FILE_BYTES} bytes" if data else "is empty"
                raise OSError(f"{path} {what}: expected a PNG, JPEG or other picture")
        except OSError as error:
            problem = f"/image: {error}" if name else "/image needs the name of a file, as in: /image page.png"
            if not keep_going:
                raise click.ClickException(problem) from None
            click.echo(problem, err=True)
            return
        self.pictures.append(data)
        click.echo(f"[{path.name}, {len(data) / 1024:,.0f} KiB: goes with your next message]", err=True)

    def _answer(self, text: str, keep_going: bool) -> None:
        """Stream the answer to ``text``, and those to the results of its tool calls.

        All become part of the conversation, unless one fails.
        """
        before = len(self.messages)
        content: Any = [*self.pictures, text] if self.pictures else text
        self.pictures.clear()
        self.messages.append({"role": "user", "content": content})
        try:
            while calls := self._say():
                for call in calls:
                    if (result := self.result_of(call)) is None:
                        del self.messages[before:]
                        return
                    self.messages.append(
                        {"role": "tool", "content": result, "tool_call_id": call.id, "name": call.name}
                    )
        except ringline.RingError as error:
            del self.messages[before:]
            if not keep_going:
                raise click.ClickException(describe(error, self.address, self.connection)) from None
            click.echo(f"Error: {describe(error, self.address, self.connection)}", err=True)

    def _say(self) -> tuple[ringline.ToolCall, ...]:
        """Stream one message of the model, and append it; returns its tool calls."""
        system: list[ringline.Message] = [] if self.system is None else [{"role": "system", "content": self.system}]
        with usage_errors():
            stream = self.client.stream(messages=[*system, *self.messages], **self.options)
        printer = AnswerPrinter(stream)
        try:
            with stream, closed_by_interrupt(stream):
                for delta in stream:
                    printer.show(delta)
                answer = stream.result()
        except KeyboardInterrupt:
            click.echo(" [stopped]")
            self.messages.append({"role": "assistant", "content": _content_so_far(stream)})
            return ()
        except ringline.RingError:
            click.echo()
            raise
        printer.end()
        if not answer.text:
            click.echo()  # a line for each answer
        self.messages.append(answer.message())
        return answer.tool_calls


def _content_so_far(stream: ringline.Stream) -> str:
    """What a closed stream delivered."""
    try:
        return stream.result().content
    except ringline.RingError as closed:
        return closed.partial.choices[0].content if closed.partial else ""
