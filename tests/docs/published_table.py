"""The tables of docs/reference/published.md: what becomes of each published checkpoint.

``python -m tests.docs.published_table`` writes them into the page.
"""

from __future__ import annotations

from engine_core.vision.registry import VISION_MODELS
from tests.docs.documents import ROOT, Generated
from tests.engine_core.models.published import GROUPS
from tests.engine_core.models.published.entry import Published

PAGE = ROOT / "docs" / "reference" / "published.md"
_BEGIN = "<!-- By `python -m tests.docs.published_table`, which a test runs. -->\n"
_END = "<!-- End of the tables. -->"


def tables() -> str:
    """One for each group."""
    return "\n".join(_table(title, group) for title, group in GROUPS.items())


def _table(title: str, group: tuple[Published, ...]) -> str:
    head = [f"## {title[0].upper()}{title[1:]}", "", "| checkpoint | weights | what happens |", "|---|---|---|"]
    return "\n".join([*head, *map(_row, group)]) + "\n"


def _row(published: Published) -> str:
    weights = "" if published.weights is None else _count(published.weights)
    said = f": {published.refusal}" if published.refusal else ""
    return f"| {published.name} | {weights} | {published.outcome}{_seeing(published)}{said} |"


def _seeing(published: Published) -> str:
    """Whether its class is one that sees pictures."""
    seen = VISION_MODELS.keys() & set(published.config.get("architectures") or ())
    return ", and pictures" if seen and not published.refusal else ""


def _count(billions: float) -> str:
    """Three digits."""
    return f"{billions * 1000:.3g} M" if billions < 1 else f"{float(f'{billions:.3g}'):g} B"


TABLE = Generated(PAGE, _BEGIN, _END, tables)

if __name__ == "__main__":
    TABLE.write()
