"""Shows an answer as it comes: its text, or its parts."""

from __future__ import annotations

import click
import ringline


class AnswerPrinter:
    """Prints a stream's deltas: the text, or an answer's parts: content, calls, and reasoning (dimmed, on stderr).

    A call is printed as ``name(arguments)``. Each part begins on a new line.
    """

    def __init__(self, stream: ringline.Stream) -> None:
        self._stream = stream
        self._last = ""
        """The last character printed."""
        self._part: type[ringline.Part] | None = None
        """The part being printed; None before the first, or without parts."""

    def show(self, delta: ringline.Delta) -> None:
        """Print what a delta adds."""
        request = self._stream.request
        if request is None or "parse" not in request.options:
            self._print(delta.text)
            return
        for part in delta.parts:
            begins = isinstance(part, ringline.ToolCallPiece) and part.name
            if type(part) is not self._part or begins:
                self._end_part()
                self._part = type(part)
            if isinstance(part, ringline.ToolCallPiece):
                self._print(f"{part.name}({part.arguments}" if begins else part.arguments)
            else:
                self._print(part.text)

    def end(self) -> None:
        """End the line if anything was printed."""
        if self._part is not None:
            self._end_part()
        elif self._last:
            click.echo()

    def _end_part(self) -> None:
        if self._part is ringline.ToolCallPiece:
            self._print(")")
        if self._last not in ("", "\n"):
            self._print("\n")

    def _print(self, text: str) -> None:
        aside = self._part is ringline.Reasoning
        click.echo(click.style(text, dim=True) if aside else text, nl=False, err=aside)
        self._last = text[-1:] or self._last
