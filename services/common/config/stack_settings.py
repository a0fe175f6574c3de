"""The options of ``ringline serve`` itself: its HTTP gateways, and how many of each service it runs."""

from __future__ import annotations

from dataclasses import dataclass

from services.common.config.options import SettingError, check_section, option

MAX_PROCESSES = 10
"""The most processes of one service: their metrics ports follow each other."""


@dataclass(frozen=True, slots=True)
class StackSettings:
    """What `ringline serve` runs beside engines."""

    http: bool = option(True, "Run a gateway, too: OpenAI's and Anthropic's APIs and a chat page over HTTP.")
    http_port: int | None = option(
        None,
        "The gateways' port; 0 takes a free one. Default: 8000, or the next free one if that is taken.",
        minimum=0,
        maximum=65535,
    )

    num_gateways: int = option(1, "Gateways, which share the HTTP port.", minimum=1, maximum=MAX_PROCESSES)
    num_processors: int | None = option(
        None,
        "Processors, which share the gRPC port. Default: as many as gateways. Each applies its limits, and those of "
        "tenants, to what it gets itself.",
        minimum=1,
        maximum=MAX_PROCESSES,
    )
    num_detokenizers: int = option(
        1, "Detokenizers; each engine's answers are divided among them.", minimum=1, maximum=MAX_PROCESSES
    )

    def __post_init__(self) -> None:
        check_section(self)
        if not self.http and self.num_gateways > 1:
            raise SettingError("num_gateways", self.num_gateways, "no value with --no-http, which leaves gateways out")

    @property
    def processors(self) -> int:
        """How many processors to run."""
        return self.num_processors or self.num_gateways
