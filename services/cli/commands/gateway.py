"""``ringline gateway``: one gateway process."""

from __future__ import annotations

from typing import Any

import click

from services.common.config.flags import (
    SettingsCommand,
    build_settings,
    given_options,
    ignored_flags,
    with_settings,
)
from services.common.config.llama_server_options import LLAMA_SERVER_FLAGS
from services.common.config.options import settings_of
from services.common.config.settings import GatewaySettings
from services.common.config.vllm_options import VLLM_FLAGS
from services.common.telemetry.logs import configure_logs, warn_of_ignored_flags

_API_KEY = "is an option of `ringline processor`, which the gateway passes keys on to"


@with_settings(settings_of(GatewaySettings()))
@click.command(cls=SettingsCommand, foreign={**LLAMA_SERVER_FLAGS, **VLLM_FLAGS, "api_key": _API_KEY})
def gateway(**options: Any) -> int:
    """Serve OpenAI's and Anthropic's APIs and a chat page over HTTP, in front of processors."""
    settings = build_settings(GatewaySettings(), given_options(options))
    configure_logs(settings.telemetry, settings.service)
    warn_of_ignored_flags(ignored_flags())

    from services.gateway.main import run  # not above, so that help and wrong options are answered at once

    return run(settings)
