"""The options of ``ringline serve`` itself: its HTTP gateway."""

from __future__ import annotations

from dataclasses import dataclass

from services.common.config.options import check_section, option


@dataclass(frozen=True, slots=True)
class StackSettings:
    """The gateway of `ringline serve`."""

    http: bool = option(True, "Run a gateway, too: OpenAI's and Anthropic's APIs and a chat page over HTTP.")
    http_port: int | None = option(
        None,
        "The gateway's port; 0 takes a free one. Default: 8000, or the next free one if that is taken.",
        minimum=0,
        maximum=65535,
    )

    def __post_init__(self) -> None:
        check_section(self)
