"""``ringline serve``: the three services and a gateway on this machine, supervised."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import click
import structlog

from engine_core.config import EngineConfig
from engine_core.model_loader import location
from services.cli.commands.engine import (
    FOREIGN_FLAGS,
    engine_config,
    ignored_seed,
    require_adapters,
    require_hub_model,
    with_model,
)
from services.cli.supervise.child_logs import ChildLogs
from services.cli.supervise.stack import ReadyStack, StackOptions, choose_http_port, choose_ports, run_stack
from services.common.config.addresses import GATEWAY_PORT
from services.common.config.errors import FatalError
from services.common.config.flags import (
    SettingsCommand,
    build_settings,
    given_options,
    ignored_flags,
    with_settings,
)
from services.common.config.options import Setting, settings_of
from services.common.config.security_settings import is_loopback
from services.common.config.settings import (
    AdapterSettings,
    DetokenizerSettings,
    EngineServiceSettings,
    GatewaySettings,
    ProcessorSettings,
)
from services.common.config.stack_settings import StackSettings
from services.common.rpc.bind_address import check_bindable
from services.common.telemetry.logs import configure_logs, warn_of_ignored_flags, warn_of_unknown_variables

log = structlog.get_logger()

_DECIDED_HERE = (
    "uds",
    "share_port",
    "zone",
    "name",
    "data_parallel_rank",
    "engines",
    "detokenizers",
    "processors",
    "processor_cert_file",
    "dns_refresh_interval",
    "service_token_file",
    "service_identities",
)
"""Options of the services that the stack sets itself."""
_NOT_OF_A_STACK = dict.fromkeys(_DECIDED_HERE, "is not an option of `ringline serve`, which links its services itself")

ENGINE_SETTINGS = (*settings_of(EngineConfig()), *settings_of(EngineServiceSettings()))


def stack_settings() -> list[Setting]:
    """The options of a stack: its own and all its services', except those it sets itself."""
    ring = (*settings_of(ProcessorSettings()), *ENGINE_SETTINGS, *settings_of(DetokenizerSettings()))
    settings = (*ring, *settings_of(StackSettings()), *settings_of(GatewaySettings()))
    return [setting for setting in settings if setting.name not in _DECIDED_HERE]


@with_settings(stack_settings())
@click.command(cls=SettingsCommand, foreign={**FOREIGN_FLAGS, **_NOT_OF_A_STACK})
@click.argument("checkpoint", metavar="[MODEL]", type=click.Path(), required=False)
def serve(checkpoint: str | None, **options: Any) -> int:
    """Serve MODEL, a checkpoint's directory, GGUF file or hub id, with an engine, a detokenizer, a processor and a
    gateway on this machine, or several of each.

    gRPC clients connect to --host and --port, HTTP clients (OpenAI's API, browsers) to --host and --http-port; the
    services are linked by unix sockets, and restarted if they die. Without MODEL, the small bundled model is served;
    smollm2 and minilm are in Python packages. The metrics ports of the
    engine, the detokenizer and the gateway are 10, 20 and 30 above the processor's. Logs are readable text unless
    --log-format is json.
    """
    values = with_model(given_options(options), checkpoint)
    if "model" not in values:
        values["model"] = bundled_model()
    settings = build_settings(ProcessorSettings(), values)
    as_json = settings.telemetry.log_format == "json"
    configure_logs(replace(settings.telemetry, log_format="json" if as_json else "console"), "serve")
    warn_of_unknown_variables()
    warn_of_ignored_flags(ignored_flags() | (without_effect := ignored_seed(values)))
    if without_effect:
        del values["seed"]  # or the engine would warn of it again
    config = engine_config(values)  # refuse what can be refused before a process starts
    require_adapters(build_settings(AdapterSettings(), values), config.lora)
    check_bindable(settings.server)
    stack = build_settings(StackSettings(), values)
    if stack.http:
        build_settings(GatewaySettings(), values)
        if stack.http_port is not None:
            if stack.http_port == settings.server.port != 0:
                raise FatalError(f"port {stack.http_port} is the processor's: choose another with --http-port")
            check_bindable(replace(settings.server, port=stack.http_port), "--http-port")
    if stack.processors > 1 and settings.auth.tenants_file is not None:
        log.warning("each processor applies the limits of --tenants-file by itself", processors=stack.processors)
    logs = ChildLogs(as_json=as_json)
    if as_json:
        log.info("starting", model=values["model"])
    else:
        logs.say(f"starting {_listed(stack_counts(stack, values))} with {values['model']}")
    require_hub_model(config.model)
    options_of_stack = stack_options(settings, stack, values)
    for notice in address_notices(settings, stack, options_of_stack):
        if as_json:
            log.warning(notice)
        else:
            logs.say(notice)
    return asyncio.run(
        run_stack(
            options_of_stack,
            logs,
            grace=settings.server.drain_grace,
            on_ready=lambda ready: _announce(ready, logs, values["model"], as_json),
        )
    )


def stack_counts(stack: StackSettings, values: dict[str, Any]) -> dict[str, int]:
    """Processes of each service of which a stack may have several."""
    counts = {"engine": values.get("data_parallel_size", 1), "detokenizer": stack.num_detokenizers}
    return counts | {"processor": stack.processors} | ({"gateway": stack.num_gateways} if stack.http else {})


def _listed(counts: dict[str, int]) -> str:
    """The processes of a stack in words: "2 engines, a detokenizer, a processor and a gateway"."""
    one = {service: f"{'an' if service == 'engine' else 'a'} {service}" for service in counts}
    *others, last = [f"{count} {service}s" if count > 1 else one[service] for service, count in counts.items()]
    return f"{', '.join(others)} and {last}"


def bundled_model() -> str:
    """The directory of the default checkpoint. Raises ``UsageError`` if it is missing."""
    if (model := location.bundled_model()) is None:
        raise click.UsageError(
            "MODEL is missing, and this installation has no bundled model: give a checkpoint's directory, GGUF file or "
            "hub id."
        )
    return model


def stack_options(settings: ProcessorSettings, stack: StackSettings, values: dict[str, Any]) -> StackOptions:
    """The options of a stack whose processors have ``settings``."""
    server, telemetry = settings.server, settings.telemetry
    counts = stack_counts(stack, values)
    port, metrics_port = choose_ports(server.host, server.port, telemetry.metrics_port, counts)
    options = StackOptions(
        host=server.host,
        port=port,
        metrics_port=metrics_port if telemetry.metrics else None,
        engine_settings=ENGINE_SETTINGS,
        values=values,
        counts=counts,
    )
    if not stack.http:
        return options
    taken = (port, *options.metrics_ports.values())
    return replace(options, http_port=choose_http_port(server.host, stack.http_port, taken))


def address_notices(settings: ProcessorSettings, stack: StackSettings, options: StackOptions) -> Iterator[str]:
    """What may surprise about the addresses of a stack."""
    if options.http_port is not None and stack.http_port is None:
        if "port" in options.values:
            yield f"gRPC listens on port {options.port} (--port), HTTP on port {options.http_port} (--http-port)"
        elif options.http_port != GATEWAY_PORT:
            yield f"port {GATEWAY_PORT} is in use: HTTP is at port {options.http_port}; --http-port chooses another"
    auth = settings.auth
    lacks = [] if auth.api_key or auth.auth_token_file or auth.auth_jwks_file else ["keys (--api-key)"]
    lacks += [] if settings.tls.tls_cert_file is not None else ["TLS (--tls-cert-file)"]
    if lacks and not is_loopback(options.host):
        everywhere = options.host in ("0.0.0.0", "::")
        who = f"others reach this machine as {socket.gethostname()}" if everywhere else "others may connect"
        yield f"--host {options.host}: {who}, without {' and '.join(lacks)}"


async def _announce(ready: ReadyStack, logs: ChildLogs, model: str, as_json: bool) -> None:
    if as_json:
        log.info("ready", address=ready.address, http_url=ready.http_url, seconds=round(ready.seconds, 3))
    else:
        http = "" if ready.http_url is None else f", HTTP at {ready.http_url} (chat page; OpenAI's API: /v1)"
        logs.ready(f"ready in {ready.seconds:.1f} s with {model}: gRPC at {ready.address}{http}")
