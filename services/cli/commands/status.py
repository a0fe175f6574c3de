"""``ringline status``: which services run, their health and load."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import textwrap
import time
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

import click
import grpc.aio
from google.protobuf.json_format import MessageToDict
from ringline.engine.v1 import engine_pb2, engine_pb2_grpc
from ringline.inference.v1 import inference_pb2, inference_pb2_grpc

from services.cli.commands._connection import Connection
from services.cli.commands._diagnosis import FULL_NAMES, connection_trouble, service_trouble
from services.cli.commands._live_page import LivePage, read_live_page
from services.cli.commands._options import DEFAULT_ADDRESS, ClientCommand, connection_options
from services.cli.supervise.gateway_health import gateway_health
from services.cli.supervise.runtime_directory import StackState, running_stacks
from services.cli.supervise.stack import service_of
from services.common.config.addresses import host_and_port, is_dns_name, valid_address
from services.common.config.errors import ExitCode, FatalError
from services.common.config.variable_names import ADDRESS_VARIABLE
from services.common.links.channels import Endpoint, check_health
from services.common.links.discovery import resolve_target
from services.common.telemetry.drafts import acceptance

_TIMEOUT = 2.0
_MOST_NAMES = 12
"""Adapters that a line names."""


@dataclass(frozen=True, slots=True)
class ServiceStatus:
    """What one service answered."""

    service: str
    address: str
    """A gateway's is a URL, or that of a unix socket."""
    health: str
    """The health service's answer; else UNREACHABLE, or NOT_RUNNING while a stack restarts the service."""
    pid: int | None = None
    metrics: str | None = None
    models: list[dict[str, Any]] | None = None
    """Of a processor: the models that it serves."""
    page: LivePage | None = None
    """Of a processor: its requests and peers, as its live page shows them."""
    load: dict[str, Any] | None = None
    """Of an engine: the fields of ``ringline.engine.v1.Load``."""
    ranks: list[dict[str, Any]] | None = None
    """Of an engine: the processes of its ranks, as ``ringline.engine.v1.RankProcess``; empty without any."""
    adapters: list[dict[str, Any]] | None = None
    """Of an engine: those that it knows, as ``ringline.engine.v1.ListedAdapter``; None if it serves none."""
    trouble: str | None = None
    """Why it is unreachable or unknown, if that is visible."""

    @property
    def absent(self) -> bool:
        """Whether nothing listens at its address."""
        return self.health == "UNREACHABLE" and self.trouble is None


@dataclass(frozen=True, slots=True)
class StackStatus:
    """One ``ringline serve``, or the addresses asked for."""

    title: str
    services: list[ServiceStatus]


@click.command(cls=ClientCommand)
@click.option(
    "--address",
    "processors",
    metavar="ADDRESS",
    multiple=True,
    help=f"A processor. Can be repeated.  [env var: {ADDRESS_VARIABLE}; default: {DEFAULT_ADDRESS}]",
)
@click.option("--engine", "engines", metavar="ADDRESS", multiple=True, help="An engine. Can be repeated.")
@click.option("--detokenizer", "detokenizers", metavar="ADDRESS", multiple=True, help="A detokenizer. Can be repeated.")
@click.option("--all", "everything", is_flag=True, help="Every stack that this user runs on this machine.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@connection_options
def status(
    processors: tuple[str, ...],
    engines: tuple[str, ...],
    detokenizers: tuple[str, ...],
    everything: bool,
    as_json: bool,
    connection: Connection,
) -> int:
    """Show the processor at --address: its health and models; if this user runs it here with `ringline serve`, all
    services of that stack, with process ids.

    An address is host:port or unix:path; if the host is a name, all of its addresses are shown. The exit code is 0 if
    everything shown is serving, else (or if nothing runs) 1.
    """
    named = any((processors, engines, detokenizers))
    if everything and named:
        raise click.UsageError("give either --all or addresses")
    if not named:
        processors = (os.environ.get(ADDRESS_VARIABLE) or DEFAULT_ADDRESS,)
    asked = {"processor": _split(processors), "engine": _split(engines), "detokenizer": _split(detokenizers)}
    found = asyncio.run(_everything(connection) if everything else _asked(asked, connection, named=named))
    services = [service for stack in found for service in stack.services]
    if as_json:
        click.echo(json.dumps({"stacks": [asdict(stack) for stack in found]}, indent=2))
    elif not found:
        click.echo(_nothing(None if everything else processors[0]))
    else:
        columns = shutil.get_terminal_size((0, 0)).columns  # COLUMNS, else the terminal's; a pipe has none
        click.echo(fitted("\n\n".join(stack_text(stack) for stack in found), columns))
    serving = found and all(service.health == "SERVING" for service in services)
    return ExitCode.OK if serving else ExitCode.FAILURE


def _split(targets: Sequence[str]) -> list[str]:
    """The addresses; a target may be several, separated by commas."""
    addresses = [address.strip() for target in targets for address in target.split(",")]
    for address in addresses:
        if not valid_address(address):
            raise click.BadParameter(f"{address!r} is not an address like host:port or unix:path")
    return addresses


def _nothing(address: str | None) -> str:
    """The message if nothing runs at ``address``, or (None) on this machine."""
    if address is None:
        return "nothing is running here; start it with `ringline serve`, or name a server with --address"
    others = len(_known_stacks())
    elsewhere = f", --all shows what else runs on this machine ({others} stack{'s'[: others > 1]})" if others else ""
    return f"nothing serves at {address}: `ringline serve` starts a server, --address names another{elsewhere}"


async def _everything(connection: Connection) -> list[StackStatus]:
    return list(await asyncio.gather(*(_stack(state, connection) for state in running_stacks())))


async def _asked(targets: Mapping[str, Sequence[str]], connection: Connection, *, named: bool) -> list[StackStatus]:
    """The local stacks whose processors are asked for, and the other addresses one by one.

    If no address was ``named`` and nothing listens at the default, nothing is shown for it. A stack is always shown,
    whether its services answer or not.
    """
    running = [(state, set(await resolve_target(state.address))) for state in _known_stacks()]
    stacks: list[Awaitable[StackStatus]] = []
    single: list[Awaitable[ServiceStatus]] = []
    for name, given in targets.items():
        for target in given:
            addresses = await resolve_target(target)
            here = [state for state, places in running if name == "processor" and places.intersection(addresses)]
            if here:
                stacks += [_stack(state, connection, target) for state in here]
            else:
                single += [_service(name, address, connection, target=target) for address in addresses]
    found, services = await asyncio.gather(asyncio.gather(*stacks), asyncio.gather(*single))
    shown = [service for service in services if named or not service.absent]
    return [*found, StackStatus("the addresses given", shown)] if shown else found


def _known_stacks() -> list[StackState]:
    """The local stacks; none if their directory is unusable, which does not matter to other addresses."""
    try:
        return running_stacks()
    except FatalError:
        return []


async def _stack(state: StackState, connection: Connection, target: str | None = None) -> StackStatus:
    """``target``: the address of its processor as the user gave it."""
    services = await asyncio.gather(
        *(
            _service(
                name,
                each.address,
                connection,
                target=target if service_of(name) == "processor" else None,
                pid=each.pid,
                metrics=each.metrics,
            )
            for name, each in state.services.items()
        )
    )
    absent = [ServiceStatus(name, "", "NOT_RUNNING") for name in state.names if name not in state.services]
    uptime = max(0, round(time.time() - state.started))
    return StackStatus(f"{state.model} (pid {state.pid}, up {uptime} s)", [*services, *absent])


async def _service(
    name: str,
    address: str,
    connection: Connection,
    *,
    target: str | None = None,
    pid: int | None = None,
    metrics: str | None = None,
) -> ServiceStatus:
    """``target``: the address as the user gave it; its host is the name that the certificate must have."""
    service = service_of(name)
    if service == "gateway":
        files = connection.tls_cert_file, connection.tls_key_file
        return ServiceStatus(name, address, await asyncio.to_thread(gateway_health, address, *files), pid, metrics)
    named = host_and_port(target)[0] if target is not None and is_dns_name(target) else None
    server_name = connection.tls_server_name or named
    async with Endpoint(address, connection.credentials(address), server_name).open() as channel:
        health = await check_health(channel, FULL_NAMES[service], _TIMEOUT)
        models = page = load = ranks = adapters = None
        if service == "processor" and health in ("SERVING", "NOT_SERVING"):
            page = await asyncio.to_thread(read_live_page, address, metrics)
        with suppress(grpc.aio.AioRpcError):
            if service == "processor" and health == "SERVING":
                models = await _models(channel)
            elif service == "engine" and health == "SERVING":
                load, ranks = await _load(channel)
                adapters = await _adapters(channel)
        trouble = await service_trouble(channel, service) if health == "SERVICE_UNKNOWN" else None
    if health == "UNREACHABLE":
        trouble = await asyncio.to_thread(connection_trouble, address, replace(connection, tls_server_name=server_name))
    return ServiceStatus(name, address, health, pid, metrics, models, page, load, ranks, adapters, trouble)


async def _models(channel: grpc.aio.Channel) -> list[dict[str, Any]]:
    stub: Any = inference_pb2_grpc.InferenceServiceStub(channel)
    answer = await stub.ListModels(inference_pb2.ListModelsRequest(), timeout=_TIMEOUT)
    return [MessageToDict(model, preserving_proto_field_name=True) for model in answer.models]


async def _load(channel: grpc.aio.Channel) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The load, and the processes of the ranks."""
    stub: Any = engine_pb2_grpc.EngineServiceStub(channel)
    answer = await stub.GetLoad(engine_pb2.GetLoadRequest(), timeout=_TIMEOUT)
    load = {field.name: getattr(answer.load, field.name) for field in answer.load.DESCRIPTOR.fields}
    load["accepted_by_position"] = list(load["accepted_by_position"])
    return load, [MessageToDict(rank, preserving_proto_field_name=True) for rank in answer.ranks]


async def _adapters(channel: grpc.aio.Channel) -> list[dict[str, Any]] | None:
    """The adapters that an engine knows, in order of names."""
    stub: Any = engine_pb2_grpc.EngineServiceStub(channel)
    request, found = engine_pb2.ListAdaptersRequest(), list[dict[str, Any]]()
    while True:
        try:
            page = await stub.ListAdapters(request, timeout=_TIMEOUT)
        except grpc.aio.AioRpcError as error:
            if error.code() in (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.FAILED_PRECONDITION):
                return None
            raise
        found += [MessageToDict(each, preserving_proto_field_name=True) for each in page.adapters]
        if not (page.more and page.adapters):
            return found
        request.after = page.adapters[-1].state.adapter.name


def stack_text(stack: StackStatus) -> str:
    """A stack's status as text."""
    return "\n".join([stack.title, *(f"  {line}" for service in stack.services for line in _lines(service))])


def fitted(text: str, columns: int) -> str:
    """``text`` with lines of at most ``columns`` (0: of any length), as far as words allow."""
    lines = []
    for line in text.splitlines():
        further = " " * (len(line) - len(line.lstrip()) + 4)
        lines += textwrap.wrap(
            line, columns or len(line) + 1, subsequent_indent=further, break_long_words=False, break_on_hyphens=False
        ) or [""]
    return "\n".join(lines)


def _lines(service: ServiceStatus) -> Iterator[str]:
    pid = "" if service.pid is None else f"pid {service.pid}"
    yield f"{service.service:<13} {service.health:<15} {pid:<12} {service.address}"
    for model in service.models or ():
        yield f"  model {model['name']}: {_purpose(model.get('pooling'))}{model.get('max_model_len')} tokens"
        if names := [each["name"] for each in model.get("adapters", ())]:
            yield f"  adapters of {model['name']}: {_some(names)}"
    page, load = service.page, service.load
    if page is not None:
        yield f"  requests live {page.live_requests}, requests waiting {page.waiting_requests}"
        yield from (f"  {line}" for line in page.missing_peers())
    if service_of(service.service) == "processor" and service.health == "NOT_SERVING":
        if page is None:
            yield "  no engine with a detokenizer is attached; the processor's log (not linked) shows where it looks"
        elif page.engines and page.detokenizers:
            yield "  the attached engines and detokenizers are draining, silent, or not linked to each other"
    if service.trouble is not None:
        yield f"  {service.trouble}"
    elif service.absent:
        yield "  nothing listens there; `ringline serve` starts a ring"
    if load is not None:
        hits, queries = load["prefix_hits"], load["prefix_queries"]
        yield (
            f"  choices running {load['running_choices']}, requests waiting {load['waiting_requests']}, "
            f"{_cache(load)}, "
            f"prefix hits {hits / queries if queries else 0.0:.0%}, preemptions {load['preemptions']}"
        )
        yield (
            f"  steps {load['steps']} (longest of the last 100: {load['longest_step_ms']} ms), "
            f"tokens {load['generated_tokens']}, ledgers {load['ledgers']}"
        )
        yield from _drafts(load)
        yield from _adapter_lines(service.adapters, load)
    yield from (f"  rank {rank['rank']}: pid {rank['pid']} on {rank['host']}" for rank in service.ranks or ())
    if service.metrics is not None:
        yield f"  metrics {service.metrics}"


def _adapter_lines(adapters: Sequence[Mapping[str, Any]] | None, load: Mapping[str, Any]) -> Iterator[str]:
    """The adapters that an engine knows, those in memory first, and last those that no new request gets."""
    if adapters is None:
        return
    names: dict[str, list[str]] = {"in memory": [], "not in memory": [], "replaced or unloaded": []}
    for state in (each["state"] for each in adapters):
        where = "in memory" if state.get("loaded") else "not in memory"
        names[where if state.get("current") else "replaced or unloaded"].append(state["adapter"]["name"])
    known = len(names["in memory"]) + len(names["not in memory"])
    yield (
        f"  adapters known {known}, in memory {load['adapters_loaded']}, in use {load['adapters_active']}, "
        f"requests waiting for theirs {load['adapter_requests_waiting']}"
    )
    yield from (f"  {where}: {_some(those)}" for where, those in names.items() if those)


def _some(names: Sequence[str]) -> str:
    """The first names, and how many there are besides."""
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def _purpose(pooling: Mapping[str, Any] | None) -> str:
    """What a model does with its tokens, if it generates none; ``pooling``: the fields of its ``PoolingFacts``."""
    if pooling is None:
        return ""
    does, labels = [], pooling.get("labels", ())
    if "dimensions" in pooling:
        does.append(f"vectors of {pooling['dimensions']} numbers")
    if "pair_form" in pooling:
        does.append("scores of pairs")
    elif labels:
        does.append(f"{len(labels)} {'label' if len(labels) == 1 else 'labels'}")
    if prompts := pooling.get("prompts"):
        does.append(f"prompts {', '.join(sorted(prompts))}")
    return f"{'; '.join(does)}; inputs of at most "


def _drafts(load: Mapping[str, Any]) -> Iterator[str]:
    """A line about the tokens that an engine guesses ahead, if it does."""
    counts = load["drafts"], load["draft_tokens"], load["accepted_draft_tokens"]
    found = acceptance(*counts, load["accepted_by_position"])
    if found is None:
        return
    if not found.drafts:
        yield "  guessed tokens: none yet"
        return
    by_position = " ".join(f"{share:.0%}" for share in found.by_position)
    yield (
        f"  guessed tokens {found.draft_tokens}, right {found.share:.0%} (by position {by_position}), "
        f"tokens per such step {found.length:.2f}"
    )


def _cache(load: Mapping[str, Any]) -> str:
    """What of an engine's cache is in use: blocks, states or both, and the larger share."""
    counted = {"KV blocks": "blocks", "states": "states"}
    shown = {name: key for name, key in counted.items() if load[f"{key}_total"]} or {"KV blocks": "blocks"}
    parts = (f"{name} {load[f'{key}_used']} of {load[f'{key}_total']}" for name, key in shown.items())
    return f"{', '.join(parts)} ({load['kv_usage']:.0%})"
