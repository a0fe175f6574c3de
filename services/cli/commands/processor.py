"""``ringline processor``: one processor process."""

from __future__ import annotations

from typing import Any

import click

from services.common.config.flags import SettingsCommand, build_settings, given_options, with_settings
from services.common.config.options import settings_of
from services.common.config.settings import ProcessorSettings
from services.common.config.vllm_options import INSTEAD_OF_VLLM_OPTIONS


@with_settings(settings_of(ProcessorSettings()))
@click.command(cls=SettingsCommand, instead=INSTEAD_OF_VLLM_OPTIONS)
def processor(**options: Any) -> int:
    """Serve clients: tokenize and admit their requests, send them to engines, and stream the text back."""
    settings = build_settings(ProcessorSettings(), given_options(options))

    from services.processor.main import run  # not above, so that help and wrong options are answered at once

    return run(settings)
