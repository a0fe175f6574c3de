"""``ringline processor``: one processor process."""

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
from services.common.config.settings import ProcessorSettings
from services.common.config.vllm_options import VLLM_FLAGS
from services.common.telemetry.logs import configure_logs, warn_of_ignored_flags


@with_settings(settings_of(ProcessorSettings()))
@click.command(cls=SettingsCommand, foreign={**LLAMA_SERVER_FLAGS, **VLLM_FLAGS})
def processor(**options: Any) -> int:
    """Serve clients: tokenize and admit their requests, send them to engines, and stream the text back."""
    settings = build_settings(ProcessorSettings(), given_options(options))
    configure_logs(settings.telemetry, settings.service)
    warn_of_ignored_flags(ignored_flags())

    from services.processor.main import run  # not above, so that help and wrong options are answered at once

    return run(settings)
