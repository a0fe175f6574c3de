"""``ringline processor``: one processor process."""

from __future__ import annotations

from typing import Any

import click

from services.processor.main import run
from services.runtime.flags import SettingsCommand, build_settings, given, with_settings
from services.runtime.options import settings_of
from services.runtime.settings import ProcessorSettings


@with_settings(settings_of(ProcessorSettings()))
@click.command(cls=SettingsCommand)
def processor(**options: Any) -> int:
    """Serve clients: render, tokenize, admit and route their requests, and stream text back."""
    return run(build_settings(ProcessorSettings(), given(options)))
