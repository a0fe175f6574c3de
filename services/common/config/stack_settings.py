"""The options of ``ringline serve`` itself: its HTTP gateway, and how many detokenizers it runs."""

from __future__ import annotations

from dataclasses import dataclass

from services.common.config.options import check_section, option


@dataclass(frozen=True, slots=True)
class StackSettings:
    """What `ringline serve` runs beside engines and a processor."""

    http: bool = option(True, "Run a gateway, too: OpenAI's and Anthropic's APIs and a chat page over HTTP.")
    http_port: int | None = option(
        None,
        "The gateway's port; 0 takes a free one. Default: 8000, or the next free one if that is taken.",
        minimum=0,
        maximum=65535,
    )

    num_detokenizers: int = option(
        1, "Detokenizers; each engine's answers are divided among them.", minimum=1, maximum=10
    )

    def __post_init__(self) -> None:
        check_section(self)
