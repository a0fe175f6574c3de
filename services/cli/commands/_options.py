"""Shared by the client commands: the address, generation options as flags, and readable errors."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from functools import wraps
from typing import Any, TypeVar, cast

import click
import grpc
import ringline
from ringline.connect_errors import connection_failure

from services.cli.commands._beams import BEAM_FLAGS
from services.cli.commands._connection import Connection
from services.common.config.addresses import PROCESSOR_PORT, valid_address
from services.common.config.flags import Command, write_sections
from services.common.config.options import VARIABLE_PREFIX
from services.common.config.variable_names import (
    ADDRESS_VARIABLE,
    SERVER_NAME_VARIABLE,
    TOKEN_FILE_VARIABLE,
    TOKEN_VARIABLE,
    unknown_variables,
)

DEFAULT_ADDRESS = f"127.0.0.1:{PROCESSOR_PORT}"

_CONNECTION_FLAGS = {
    "ca": "--tls-ca-file",
    "cert": "--tls-cert-file",
    "key": "--tls-key-file",
    "server_name": "--tls-server-name",
    "token": "--token-file",
}
"""Flags, keyed by the client library's option names."""
_OTHER_FLAGS = _CONNECTION_FLAGS | BEAM_FLAGS

Function = TypeVar("Function", bound=Callable[..., Any])
_OPTION_NAMES = frozenset(ringline.Options.__annotations__)
_POOLING_NAMES = frozenset(
    {
        *ringline.EmbedOptions.__annotations__,
        *ringline.ScoreOptions.__annotations__,
        *ringline.ClassifyOptions.__annotations__,
    }
)
_PARSE_FIELDS = {"tool_call_format": "tool_calls", "reasoning_format": "reasoning"}
"""The fields of ``parse`` that flags set."""
PATIENCE = 3.0
"""Seconds for which a command looks for a server after losing one."""
_CONNECTION_OPTIONS = (
    click.option("--tls", is_flag=True, help="Use TLS, and trust the public certificate authorities."),
    click.option(
        "--tls-ca-file",
        envvar=VARIABLE_PREFIX + "TLS_CA_FILE",
        help="Use TLS, and trust the certificate authorities in this PEM file.",
    ),
    click.option(
        "--tls-cert-file",
        envvar=VARIABLE_PREFIX + "TLS_CERT_FILE",
        help="PEM file of the client's certificate, for a server that asks for one (mutual TLS).",
    ),
    click.option(
        "--tls-key-file", envvar=VARIABLE_PREFIX + "TLS_KEY_FILE", help="PEM file of the certificate's private key."
    ),
    click.option(
        "--tls-server-name",
        envvar=SERVER_NAME_VARIABLE,
        help="Name that the server's certificate must have. Default: the host of --address.",
    ),
    click.option(
        "--token-file",
        envvar=TOKEN_FILE_VARIABLE,
        help=f"File whose first line is the bearer token to send. Default: the one that {TOKEN_VARIABLE} holds.",
    ),
)
SECTIONS = {
    "Form of the answer": ("json_schema", "json_object", "regex", "choice", "grammar", "any_whitespace"),
    "Tools": ("tools", "tool_choice"),
    "Parts of the answer": ("tool_call_format", "reasoning_format"),
    "Sampling": (
        "top_k",
        "min_p",
        "frequency_penalty",
        "presence_penalty",
        "repetition_penalty",
        "logit_bias",
        "allowed_token_ids",
        "bad_words",
    ),
    "Beams": ("beams", "length_penalty", "early_stopping"),
    "Stopping": (
        "min_tokens",
        "include_stop_str_in_output",
        "stop_in_reasoning",
        "max_reasoning_tokens",
        "stop_token_ids",
        "ignore_eos",
    ),
    "Length": ("truncate", "max_input_tokens"),
    "Prompt and text": ("add_special_tokens", "skip_special_tokens", "truncate_prompt_tokens"),
    "Scheduling": ("priority", "cache_salt", "speculation"),
    "Connection": ("tls", "tls_ca_file", "tls_cert_file", "tls_key_file", "tls_server_name", "token_file"),
}
"""Sections of the help, after the common options."""


def token_ids(text: str) -> list[int]:
    """Parse ``1,2,3``."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a list of token ids: expected numbers such as 1,2,3") from None


def bias(text: str) -> tuple[int, float]:
    """Parse ``ID:VALUE``."""
    token_id, _, value = text.partition(":")
    try:
        return int(token_id), float(value)
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a bias: expected a token id and a value such as 42:-1.5") from None


def _address_option(metavar: str, more: str, *, several: bool) -> Callable[[Function], Function]:
    def check(context: click.Context, parameter: click.Parameter, given: str) -> str:
        """Refuse malformed addresses, and warn of unknown variables: one may be a misspelled RINGLINE_ADDRESS."""
        for address in map(str.strip, given.split(",")) if several else (given,):
            if not valid_address(address):
                raise click.BadParameter(f"{address!r} is not an address: expected host:port, [v6]:port or unix:path")
        for name, nearest in unknown_variables(os.environ):
            hint = f"did you mean {nearest}?" if nearest else "docs/reference/configuration.md lists them all"
            click.echo(f"warning: unknown variable {name}; {hint}", err=True)
        return given

    return click.option(
        "--address",
        metavar=metavar,
        default=DEFAULT_ADDRESS,
        envvar=ADDRESS_VARIABLE,
        callback=check,
        show_default=True,
        show_envvar=True,
        help=f"Address of the processor, host:port or unix:path.{more}",
    )


address_option = _address_option("HOST:PORT", "", several=False)
addresses_option = _address_option("HOST:PORT,…", " If there are several, one that answers is used.", several=True)


def connection_options(function: Function) -> Function:
    """Add the flags of ``Connection``, which the function gets as ``connection``."""

    @wraps(function)
    def with_connection(**values: Any) -> Any:
        names = [field.name for field in fields(Connection)]
        return function(connection=Connection(**{name: values.pop(name) for name in names}), **values)

    for option in reversed(_CONNECTION_OPTIONS):
        with_connection = option(with_connection)
    return cast("Function", with_connection)


_GENERATION_OPTIONS = (
    click.option("--model", help="Name of the model, or of an adapter. Default: the model that is served."),
    click.option("--adapter", help="Name of one of the model's adapters. `ringline status` lists them."),
    click.option(
        "--max-tokens", type=int, help="Most tokens to generate for each choice. Default: until the context is full."
    ),
    click.option(
        "--min-tokens", type=int, help="Fewest tokens to generate for each choice, whatever would end it before."
    ),
    click.option(
        "--temperature",
        type=float,
        help="0 always takes the most probable token; higher is more random. Default: the model's own.",
    ),
    click.option("--top-k", type=int, help="Sample from this many of the most probable tokens; 0: from all."),
    click.option(
        "--top-p", type=float, help="Sample from the most probable tokens whose probabilities add up to this."
    ),
    click.option(
        "--min-p",
        type=float,
        help="Leave out tokens whose probability is below this share of the most probable token's.",
    ),
    click.option(
        "--frequency-penalty", type=float, help="Subtracted from a token's logit for each time it is in the output."
    ),
    click.option("--presence-penalty", type=float, help="Subtracted once from the logit of each token in the output."),
    click.option(
        "--repetition-penalty", type=float, help="Above 1, makes tokens that are in the prompt or output less likely."
    ),
    click.option(
        "--logit-bias", type=bias, metavar="ID:VALUE", multiple=True, help="Added to a token's logit. Can be repeated."
    ),
    click.option("--allowed-token-ids", type=token_ids, metavar="ID,ID,…", help="Sample from these tokens only."),
    click.option("--seed", type=int, help="Seed of sampling. Default: chosen by the server."),
    click.option("--stop", multiple=True, help="A string that ends the text. Can be repeated."),
    click.option(
        "--include-stop-str-in-output/--no-include-stop-str-in-output",
        default=None,
        help="Keep the stop string in the text.",
    ),
    click.option(
        "--stop-in-reasoning/--no-stop-in-reasoning",
        default=None,
        help="Let stop strings and stop token ids end the reasoning, too. Default: they count behind it.",
    ),
    click.option(
        "--max-reasoning-tokens",
        type=int,
        help="Force the end of reasoning after so many tokens. Default: no limit.",
    ),
    click.option("--stop-token-ids", type=token_ids, metavar="ID,ID,…", help="Token ids that end a choice."),
    click.option("--ignore-eos/--no-ignore-eos", default=None, help="Go on after the model's end-of-text token."),
    click.option("--bad-words", multiple=True, help="A word that must not be in the text. Can be repeated."),
    click.option(
        "--skip-special-tokens/--no-skip-special-tokens", default=None, help="Leave special tokens out of the text."
    ),
    click.option(
        "--truncate-prompt-tokens", type=int, help="Use only the end of the prompt, at most this many tokens."
    ),
    click.option(
        "--add-special-tokens/--no-add-special-tokens",
        default=None,
        help="Add the tokenizer's special tokens, such as bos, to the prompt. Default: yes for text, no for a chat.",
    ),
    click.option(
        "--tool-call-format",
        metavar="NAME",
        help="How the model writes calls of tools, such as hermes. Default: as its chat template does.",
    ),
    click.option(
        "--reasoning-format",
        metavar="NAME",
        help="How the model writes its reasoning: think, harmony or none. Default: as its chat template does.",
    ),
    click.option("--priority", type=int, help="Requests with a lower number run first. Default: 0."),
    click.option("--cache-salt", help="Share cached prompt prefixes only with requests that have the same salt."),
    click.option(
        "--speculation/--no-speculation",
        default=None,
        help="Let the engine guess tokens ahead, if it does. The tokens are the same. Default: yes.",
    ),
    click.option("--timeout", type=float, help="Seconds after which the request ends, finished or not."),
)


class ClientCommand(Command):
    """A command whose help begins with the most common options."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        options = {param.name: param for param in self.get_params(ctx) if isinstance(param, click.Option)}
        titled = {name for names in SECTIONS.values() for name in names}
        first = [option for name, option in options.items() if name not in titled]
        others = {title: [options[name] for name in names if name in options] for title, names in SECTIONS.items()}
        write_sections(ctx, formatter, {"Options": first, **others})


def generation_options(function: Function) -> Function:
    """Add every sampling and stopping option as a flag named like its field."""
    for option in reversed(_GENERATION_OPTIONS):
        function = option(function)
    return function


def to_options(values: dict[str, Any]) -> ringline.Options:
    """The given flags as options of the client library."""
    given = {name: value for name, value in values.items() if value is not None and value != ()}
    if "logit_bias" in given:
        given["logit_bias"] = dict(given["logit_bias"])
    formats = {field: given.pop(name) for name, field in _PARSE_FIELDS.items() if name in given}
    if formats:
        given["parse"] = formats
    assert given.keys() <= _OPTION_NAMES
    return cast("ringline.Options", given)


@contextmanager
def usage_errors(connection: Connection | None = None) -> Iterator[None]:
    """Report as usage errors what the client library refuses before sending; ``connection``: what it was made from."""
    try:
        yield
    except ringline.InvalidRequest as error:
        problem = _as_flag(error) or str(error)
        if connection is not None and error.field == "token":
            problem = problem.replace(_CONNECTION_FLAGS["token"], connection.token_source, 1)
        raise click.UsageError(problem) from None
    except TypeError as error:  # from a file's value, such as a tool's name that is a number
        if (found := _as_flag(error)) is None:
            raise
        raise click.UsageError(found) from None


@contextmanager
def server_errors(address: str, connection: Connection) -> Iterator[None]:
    """Report a failed request in one line, with exit code 1."""
    try:
        yield
    except ringline.RingError as error:
        raise click.ClickException(describe(error, address, connection)) from None


def _as_flag(error: ringline.InvalidRequest | TypeError) -> str | None:
    """The error's text with the flag in place of the field; None if no flag sets the field."""
    field = str(error).partition(": ")[0] if isinstance(error, TypeError) else error.field
    path = (field or "").partition("[")[0]
    name, problem = path.rpartition(".")[2], str(error).removeprefix(path)
    if path in _OTHER_FLAGS:
        return f"{_OTHER_FLAGS[path]}{problem}"
    if path.startswith("output.parse."):
        name = next((flag for flag, parsed in _PARSE_FIELDS.items() if parsed == name), "")
        return f"--{name.replace('_', '-')}{problem}" if name else None
    return f"--{name.replace('_', '-')}{problem}" if name in _OPTION_NAMES | _POOLING_NAMES else None


def describe(error: ringline.RingError, addresses: str, connection: Connection, wanted: str = "processor") -> str:
    """The error in one sentence; ``wanted`` is the service that was called."""
    from services.cli.commands._diagnosis import call_trouble, connection_trouble  # not above: it is rarely needed

    for address in map(str.strip, addresses.split(",")):
        trouble = None
        if type(error) is ringline.Unavailable:
            trouble = connection_trouble(address, connection)
        elif error.code is grpc.StatusCode.UNIMPLEMENTED:
            trouble = call_trouble(address, wanted, connection)
        if trouble is not None:
            return f"{address}: {trouble}"
    if isinstance(error, ringline.InvalidRequest) and (problem := _as_flag(error)) is not None:
        return problem
    if error.code is grpc.StatusCode.UNAUTHENTICATED:
        return f"{error.code.name}: {error}; --token-file names a file with your token, or {TOKEN_VARIABLE} holds it"
    if type(error) is not ringline.Unavailable:
        return f"{error.code.name}: {error}"
    unreached = error.unreached or {}
    if (reason := connection_failure(error)) is not None:
        unreached = {addresses: reason}
    lost, is_named, reason = str(error).partition(" is not available: ")
    if not unreached and is_named:  # by a client that had reached it
        unreached = {lost: reason}
    if unreached:
        tried = "; ".join(f"{address} is not available: {reason}" for address, reason in unreached.items())
        return f"{tried}; `ringline serve` starts a server, --address names another"
    return f"{addresses} is not available: {error}"
