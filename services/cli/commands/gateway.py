"""``ringline gateway``: one gateway process."""

from __future__ import annotations

from typing import Any

import click

from services.common.config.flags import SettingsCommand, build_settings, given_options, with_settings
from services.common.config.options import settings_of
from services.common.config.settings import GatewaySettings
from services.common.config.vllm_options import INSTEAD_OF_VLLM_OPTIONS


@with_settings(settings_of(GatewaySettings()))
@click.command(cls=SettingsCommand, instead=INSTEAD_OF_VLLM_OPTIONS)
def gateway(**options: Any) -> int:
    """Serve OpenAI's and Anthropic's APIs and a chat page over HTTP, in front of processors."""
    settings = build_settings(GatewaySettings(), given_options(options))

    from services.gateway.main import run  # not above, so that help and wrong options are answered at once

    return run(settings)
