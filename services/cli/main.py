"""The ``ringline`` command. Each subcommand is a module of ``services.cli.commands``, imported only when it is used."""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any

import click

from services.common.config.errors import ExitCode, FatalError

COMMANDS = {
    "serve": "Run all services on this machine, with an HTTP door.",
    "engine": "Run an engine, which schedules requests and computes the model.",
    "processor": "Run a processor, which takes requests and sends them to engines.",
    "detokenizer": "Run a detokenizer, which turns token ids into text.",
    "gateway": "Run a gateway, which speaks OpenAI's and Anthropic's APIs over HTTP.",
    "supervise": "Run one service in a container, and end it if it hangs.",
    "generate": "Continue a prompt.",
    "chat": "Chat with a model.",
    "embed": "Make vectors of a file's lines.",
    "rerank": "Rank a file's lines by how well they match a query.",
    "classify": "Label a file's lines.",
    "bench": "Measure throughput and latency under load.",
    "plan": "Estimate how many processes a load needs.",
    "status": "Show a server's services, their health and load.",
    "health": "Check whether a service is serving (exit code 0 or 1).",
    "certs": "Make certificates for development.",
    "token": "Make a bearer token for a tenant.",
    "demo": "Serve the bundled model, stream an answer, and stop; --kill shows a failover.",
    "config-docs": "Print docs/reference/configuration.md.",
}
"""Every subcommand with its summary. ``name`` is the click command ``name`` in ``services.cli.commands.name``."""


_BROKEN_PIPE_CODE = 128 + signal.SIGPIPE
"""The usual exit code of programs whose output pipe is closed, as by ``head``."""


class _OutputClosed(Exception):
    """The output pipe is closed. Not an ``OSError``: click would handle that itself."""


class _Lazy(click.Group):
    """A group that imports a subcommand's module only when it is used, so that each starts fast."""

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        with _broken_pipe_as_own_error():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        with _broken_pipe_as_own_error():
            return super().invoke(ctx)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args[:1] == ["help"]:
            args = [*args[1:], "--help"]
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            problem = f"{error.option_name} is no option of `ringline` itself: a command comes first, such as"
            raise click.UsageError(f"{problem} `ringline serve -m MODEL`.", ctx) from None

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        name = cmd_name.replace("-", "_")
        command: click.Command = getattr(import_module(f"services.cli.commands.{name}"), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@contextmanager
def _broken_pipe_as_own_error() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError as error:
        raise _OutputClosed from error


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(None, "-V", "--version", package_name="ringline-server")
def cli() -> None:
    """Ringline serves large language models over gRPC."""


def main() -> None:
    """Run the command line and exit with its code; expected errors are one line, without a traceback."""
    _open_closed_streams()
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # before grpc is imported: it would print to stderr
    if (
        "RINGLINE_PARENT_PID" in os.environ
    ):  # before slow imports: if the parent is killed meanwhile, no orphan may remain
        from services.common.process.run import die_with_parent

        die_with_parent()
    try:
        code = _run()
        sys.stdout.flush()
    except (_OutputClosed, BrokenPipeError):
        code = _BROKEN_PIPE_CODE
        _write_no_more(1, 2)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        with suppress(OSError):
            print(f"error: {error.filename or 'standard output'}: {error.strerror}", file=sys.stderr, flush=True)
        code = 1
        _write_no_more(1)
    sys.exit(code)


def _write_no_more(*descriptors: int) -> None:
    """Send what is still written to nowhere: the interpreter flushes its streams as it ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in descriptors:
        os.dup2(nowhere, descriptor)


def _open_closed_streams() -> None:
    """Open standard streams that the caller closed, as ``>&-`` does: sockets would have their numbers."""
    for descriptor, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free: this one
            setattr(sys, name, open(descriptor, mode, closefd=False))  # noqa: SIM115


def _run() -> int:
    try:
        result = cli.main(prog_name="ringline", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except FatalError as error:
        from services.common.telemetry.logs import report_fatal  # not above: it takes a tenth of a second

        report_fatal(str(error))
        return error.code
    except (click.Abort, KeyboardInterrupt):
        return 128 + signal.SIGINT
    return result if isinstance(result, int) else ExitCode.OK
