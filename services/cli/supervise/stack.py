"""A stack: the ring on one machine. A supervisor runs the three services, linked by unix sockets in a private
directory, with the processor on TCP and a gateway on HTTP before it, until a signal or until ``on_ready`` returns an
exit code. Several processors share their port, and so do gateways; each then has a unix socket, too, by which it is
reached alone.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import structlog

from services.cli.supervise.child_logs import ChildLogs
from services.cli.supervise.gateway_health import gateway_health
from services.cli.supervise.runtime_directory import ProcessState, RuntimeDirectory, StackState, runtime_directory
from services.cli.supervise.supervisor import ChildSpec, Supervisor
from services.common.config.addresses import GATEWAY_PORT, default_metrics_port, join_address
from services.common.config.errors import ExitCode
from services.common.config.options import VARIABLE_PREFIX, Setting, arguments, settings_of
from services.common.config.security_settings import TlsSettings
from services.common.config.settings import DetokenizerSettings, GatewaySettings, ProcessorSettings
from services.common.links.channels import Endpoint, wait_serving
from services.common.security.credentials import own_server_credentials

SERVICES = ("engine", "detokenizer", "processor", "gateway")
"""The services; each may depend on those before it. A stack without HTTP has no gateway."""
_DOORS = ("processor", "gateway")
_METRICS_OFFSETS = {"processor": 0, "engine": 10, "detokenizer": 20, "gateway": 30}
"""Offsets from the processor's metrics port, of the first of each service; others follow. By default, the ring's ports
are those of services started one by one."""
_ATTEMPTS = 100
"""Attempts to find ports that are all free."""
_CONNECT_PAUSE = 0.05
"""Seconds between checks whether the gateway is ready."""

_DOORS_ONLY = dict.fromkeys(("host", "port", *(each.name for each in fields(TlsSettings))), None)
"""Options that only the processor and the gateway get: the other links are private unix sockets."""
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Instance:
    """One process of a service."""

    service: str
    """One of ``SERVICES``."""
    number: int
    """Among the stack's processes of that service."""
    is_only: bool = True

    @property
    def name(self) -> str:
        """Unique in the stack: the service's, with its number if there are several."""
        return self.service if self.is_only else f"{self.service}-{self.number}"

    @property
    def is_door(self) -> bool:
        """Whether clients connect to it."""
        return self.service in _DOORS


def service_of(name: str) -> str:
    """The service of the instance with that name."""
    return name.partition("-")[0]


@dataclass(frozen=True, slots=True)
class StackOptions:
    """The options of a stack."""

    host: str
    port: int
    """The processors' port; not 0."""
    metrics_port: int | None
    """The port of the first processor's metrics; None: no service has metrics."""
    engine_settings: tuple[Setting, ...]
    """The options of the engine process, its own and those of ``engine_core``, which this module may not import."""
    values: Mapping[str, Any]
    """The given options, keyed by name; each child gets those it knows."""
    http_port: int | None = None
    """The gateways' port, not 0; None: no gateway."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Processes of each service, keyed by its name; one of those that are not named."""

    @property
    def instances(self) -> tuple[Instance, ...]:
        """Every process, in the order of ``SERVICES``."""
        services = SERVICES if self.http_port is not None else SERVICES[:-1]
        return tuple(
            Instance(service, number, count == 1)
            for service in services
            for count in [self.counts.get(service, 1)]
            for number in range(count)
        )

    @property
    def processor_address(self) -> str:
        """The processors' address from this machine."""
        return join_address(self._local_host, self.port)

    @property
    def http_url(self) -> str | None:
        """The gateways' URL from this machine; None without one."""
        scheme = "http" if self.values.get("tls_cert_file") is None else "https"
        return None if self.http_port is None else f"{scheme}://{join_address(self._local_host, self.http_port)}"

    @property
    def _local_host(self) -> str:
        return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)

    @property
    def metrics_ports(self) -> dict[str, int]:
        """Metrics ports keyed by instance; empty without metrics."""
        if self.metrics_port is None:
            return {}
        first = {service: self.metrics_port + offset for service, offset in _METRICS_OFFSETS.items()}
        return {each.name: first[each.service] + each.number for each in self.instances}


def child_specs(options: StackOptions, directory: RuntimeDirectory) -> list[ChildSpec]:
    """Specs of the children, in the order of ``SERVICES``."""
    settings: dict[str, Iterable[Setting]] = {
        "engine": options.engine_settings,
        "detokenizer": settings_of(DetokenizerSettings()),
        "processor": settings_of(ProcessorSettings()),
        "gateway": settings_of(GatewaySettings()),
    }
    # Without our own variables: their values are on the children's command lines.
    environment = {name: value for name, value in os.environ.items() if not name.startswith(VARIABLE_PREFIX)}
    specs = []
    for each in options.instances:
        port, service = options.metrics_ports.get(each.name), each.service
        name = f"{service}-{each.number}"
        fixed = {"name": name, "log_format": "json", "metrics": port is not None, "metrics_port": port}
        values = {**options.values, **_DOORS_ONLY, **fixed, **_links(each, options, directory)}
        given = {key: value for key, value in values.items() if value is not None}
        own_settings = list(settings[service])
        secrets = [setting for setting in own_settings if setting.secret and setting.name in given]
        hidden = {setting.variable: setting.format(given[setting.name]) for setting in secrets}
        flags = arguments([setting for setting in own_settings if setting not in secrets], given)
        # -P: do not import from a folder "services" in the user's working directory.
        argv = (sys.executable, "-P", "-m", "services.cli", service, *flags)
        needed = service != "gateway" and each.is_only  # else others do the work meanwhile
        specs.append(ChildSpec(each.name, argv, environment | hidden, needed=needed))
    return specs


def _links(instance: Instance, options: StackOptions, directory: RuntimeDirectory) -> dict[str, Any]:
    """The options that link an instance to the others."""
    addresses = service_addresses(options, directory)
    engines, detokenizers, processors = (
        tuple(addresses[each.name] for each in options.instances if each.service == service) for service in SERVICES[:3]
    )
    doors = {name: value for name, value in options.values.items() if name in _DOORS_ONLY}
    own: dict[str, Any] = {} if instance.is_door and instance.is_only else {"uds": directory.socket(instance.name)}
    if instance.is_door:
        own |= {"host": options.host, "share_port": not instance.is_only or None}
    match instance.service:
        case "engine":
            return {**own, "data_parallel_rank": instance.number}
        case "detokenizer":
            return {**own, "engines": engines}
        case "processor":
            return {**doors, **own, "port": options.port, "engines": engines, "detokenizers": detokenizers}
    return {
        **(doors if "tls_cert_file" in doors else {}),  # an authority alone would ask the processor for TLS
        **own,
        "port": options.http_port,
        "processors": processors,
        "processor_cert_file": doors.get("tls_cert_file") if len(processors) == 1 else None,
    }


def service_addresses(options: StackOptions, directory: RuntimeDirectory) -> dict[str, str]:
    """Address of each instance from this machine, an only gateway's as a URL, in the order of ``SERVICES``."""
    doors = {"processor": options.processor_address, "gateway": options.http_url or ""}
    sockets = {each.name: f"unix:{directory.socket(each.name)}" for each in options.instances}
    return sockets | {each.name: doors[each.service] for each in options.instances if each.is_door and each.is_only}


def state_of(options: StackOptions, directory: RuntimeDirectory, supervisor: Supervisor, started: float) -> StackState:
    """The present state; ``started`` in seconds since 1970."""
    addresses = service_addresses(options, directory)
    metrics_host = options.processor_address.rpartition(":")[0]
    services = {}
    for child in supervisor.children:
        name, port = child.spec.name, options.metrics_ports.get(child.spec.name)
        host = metrics_host if service_of(name) in _DOORS else "127.0.0.1"
        metrics = None if port is None else f"http://{host}:{port}/metrics"
        if child.pid is not None:
            services[name] = ProcessState(child.pid, addresses[name], metrics)
    model, address = str(options.values.get("model", "")), options.processor_address
    names = tuple(each.name for each in options.instances)
    return StackState(os.getpid(), model, started, address, services, options.http_url, names)


def choose_ports(
    host: str, port: int, metrics_port: int | None, counts: Mapping[str, int] | None = None
) -> tuple[int, int]:
    """Choose the processors' port and the first one's metrics port.

    ``port`` 0 means a free port, ``metrics_port`` None the default that follows from ``port``, and 0 a free one. All
    services' metrics ports are free, too, unless the user gave the number that they follow from; ``counts`` as in
    ``StackOptions``.
    """
    counts = counts or {}
    offsets = [
        first + number for service, first in _METRICS_OFFSETS.items() for number in range(counts.get(service, 1))
    ]
    for _ in range(_ATTEMPTS):
        chosen = port or _free_port(host)
        if metrics_port is None:
            metrics = default_metrics_port(chosen, room=max(offsets))
        else:
            metrics = metrics_port or _free_port(host)
        is_given = port != 0 if metrics_port is None else metrics_port != 0
        if is_given or all(_is_free(host, metrics + offset) for offset in offsets):
            break
    return chosen, metrics


def choose_http_port(host: str, port: int | None, taken: Collection[int] = ()) -> int:
    """Choose the gateways' port: None means the default, or the next free one; 0 any free one.

    ``taken``: by the stack's other services, which do not listen yet.
    """
    if port is None:
        after = (each for each in range(GATEWAY_PORT, 65536) if each not in taken)
        return next((each for each in after if _is_free(host, each, reuse=True)), GATEWAY_PORT)
    return port or _free_port(host)


def _free_port(host: str) -> int:
    with socket.socket(_family(host), socket.SOCK_STREAM) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def _is_free(host: str, port: int, *, reuse: bool = False) -> bool:
    """``reuse``: also free if only closed connections of an ended process hold it."""
    with socket.socket(_family(host), socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse)
        try:
            probe.bind((host, port))
        except (OSError, OverflowError):  # taken, or beyond the last port
            return False
    return True


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


@dataclass(frozen=True, slots=True)
class ReadyStack:
    """A stack whose services all serve."""

    address: str
    """The processors'."""
    http_url: str | None
    """The gateways'; None without one."""
    seconds: float
    """Seconds since the start of the first child."""
    state: StackState


async def run_stack(
    options: StackOptions,
    logs: ChildLogs,
    *,
    grace: float,
    on_ready: Callable[[ReadyStack], Awaitable[int | None]],
) -> int:
    """Run a stack and return the exit code.

    ``on_ready`` is awaited once every service serves. If it returns a code, the stack ends with it; with None the stack
    runs until a signal. A second signal ends it at once. ``grace``: seconds that requests have to finish. Raises
    ``ChildFailed`` if the stack cannot continue.
    """
    loop = asyncio.get_running_loop()
    received: list[int] = []

    def on_signal(number: int) -> None:
        received.append(number)
        if len(received) == 1:
            log.info("stopping", signal=signal.Signals(number).name, grace=grace, next="another signal stops at once")
        else:
            log.info("stopping at once", signal=signal.Signals(number).name)
        supervisor.stop()

    cert_file, key_file = options.values.get("tls_cert_file"), options.values.get("tls_key_file")
    processor = Endpoint(options.processor_address)
    if cert_file is not None and key_file is not None:
        processor = Endpoint(options.processor_address, *own_server_credentials(cert_file, key_file))
    with runtime_directory() as directory:
        started, start = time.time(), time.monotonic()
        supervisor = Supervisor(
            child_specs(options, directory),
            grace=grace,
            on_line=logs.line,
            on_change=lambda: directory.write(state_of(options, directory, supervisor, started)),
        )

        async def work() -> int | None:
            for name, address in service_addresses(options, directory).items():
                if service_of(name) == "gateway":
                    await _wait_gateway(address, cert_file, key_file)
                else:
                    await wait_serving(processor if address == processor.address else Endpoint(address))
            supervisor.allow_restarts()
            seconds, state = time.monotonic() - start, state_of(options, directory, supervisor, started)
            return await on_ready(ReadyStack(options.processor_address, options.http_url, seconds, state))

        for number in _SIGNALS:
            loop.add_signal_handler(number, on_signal, number)
        try:
            code = await _run_beside(supervisor, asyncio.create_task(work()))
            return 128 + received[1] if len(received) > 1 else code
        finally:
            for number in _SIGNALS:
                loop.remove_signal_handler(number)


async def _wait_gateway(url: str, cert_file: str | None, key_file: str | None) -> None:
    """Return when the gateway reaches the processor: it listens long before, and may never reach it."""
    while True:
        if await asyncio.to_thread(gateway_health, url, cert_file, key_file) == "SERVING":
            return
        await asyncio.sleep(_CONNECT_PAUSE)


async def _run_beside(supervisor: Supervisor, work: asyncio.Task[int | None]) -> int:
    """Run the supervisor until it ends, or until ``work`` returns an exit code or raises."""
    supervising = asyncio.create_task(supervisor.run())
    stopping = asyncio.create_task(supervisor.stopping.wait())
    try:
        await asyncio.wait({work, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if work.done() and not stopping.done():
            if work.exception() is None and work.result() is None:
                await stopping
            else:
                supervisor.stop()
        work.cancel()
        await supervising
        await asyncio.wait({work})
        return ExitCode.OK if work.cancelled() else work.result() or ExitCode.OK
    finally:
        for task in (work, stopping, supervising):
            task.cancel()
        await asyncio.gather(work, stopping, supervising, return_exceptions=True)
