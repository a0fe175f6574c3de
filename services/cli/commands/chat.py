"""``ringline chat``: a conversation at the terminal, or with lines from a pipe."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import dataclass, field
from typing import Any

import click
import ringline

from services.cli.commands._connection import Connection, closed_by_interrupt
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

HELP = "/system TEXT sets the system message, /reset begins a new conversation, /exit ends; Ctrl-C stops an answer."


@click.command("chat", cls=ClientCommand, epilog=HELP)
@addresses_option
@connection_options
@click.option("--system", help="The system message.")
@generation_options
def chat(address: str, connection: Connection, system: str | None, **flags: Any) -> None:
    """Talk to the model."""
    with usage_errors():
        client = ringline.Client(address, patience=PATIENCE, **connection.for_client())
    with client:
        with server_errors(address, connection):
            served = {model.name: model for model in client.models()}
        if not served:
            raise click.ClickException(
                f"no engine is attached at {address}, so no model is served; `ringline status` shows what is missing"
            )
        model = next(iter(served.values())) if flags["model"] is None else served.get(flags["model"])
        if model is None:
            raise click.ClickException(
                f"model {flags['model']!r} is not served at {address}; served: {', '.join(served)}"
            )
        if not model.has_chat_template:
            raise click.ClickException(
                f"model {model.name!r} has no chat template; `ringline generate` continues plain text without one"
            )
        conversation = Conversation(client, address, connection, system, to_options(flags))
        if sys.stdin.isatty():
            click.echo(f"{model.name} at {address}. {HELP}", err=True)
            _talk(conversation)
        else:
            for line in sys.stdin:
                if not conversation.take(line, keep_going=False):
                    break


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


@dataclass(slots=True)
class Conversation:
    """What was said so far, and how the next answer is asked for."""

    client: ringline.Client
    address: str
    connection: Connection
    system: str | None
    options: ringline.Options
    messages: list[ringline.Message] = field(default_factory=list)

    def take(self, line: str, keep_going: bool) -> bool:
        """Handle a line of input; returns whether to go on. A failed answer raises unless ``keep_going``."""
        text = line.strip()
        command, _, argument = text.partition(" ")
        if command == "/exit":
            return False
        if command == "/reset":
            self.messages.clear()
        elif command == "/system":
            self.system = argument.strip() or None
        elif command.startswith("/"):
            click.echo(f"unknown command {command}. {HELP}", err=True)
        elif text:
            self._answer(text, keep_going)
        return True

    def _answer(self, text: str, keep_going: bool) -> None:
        """Stream the answer; it becomes part of the conversation, unless it failed."""
        self.messages.append({"role": "user", "content": text})
        system: list[ringline.Message] = [] if self.system is None else [{"role": "system", "content": self.system}]
        said = ""
        try:
            stream = self.client.stream(messages=[*system, *self.messages], **self.options)
            with stream, closed_by_interrupt(stream):
                for delta in stream:
                    click.echo(delta.text, nl=False)
                    said += delta.text
        except KeyboardInterrupt:
            click.echo(" [stopped]", nl=False)
        except ringline.RingError as error:
            self.messages.pop()
            click.echo()
            if not keep_going:
                raise click.ClickException(describe(error, self.address, self.connection)) from None
            click.echo(f"Error: {describe(error, self.address, self.connection)}", err=True)
            return
        click.echo()
        self.messages.append({"role": "assistant", "content": said})
