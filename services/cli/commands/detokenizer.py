"""``ringline detokenizer``: one detokenizer process."""

from __future__ import annotations

from typing import Any

import click

from services.common.config.flags import SettingsCommand, build_settings, given_options, with_settings
from services.common.config.options import settings_of
from services.common.config.settings import DetokenizerSettings


@with_settings(settings_of(DetokenizerSettings()))
@click.command(cls=SettingsCommand)
def detokenizer(**options: Any) -> int:
    """Turn the token ids of engines into text for processors."""
    settings = build_settings(DetokenizerSettings(), given_options(options))

    from services.detokenizer.main import run  # not above, so that help and wrong options are answered at once

    return run(settings)
