"""The table of docs/reference/gguf.md: what each value of ``general.architecture`` is run as.

``python -m tests.docs.gguf_table`` writes it into the page.
"""

from __future__ import annotations

from engine_core.model_loader.gguf.architectures import ARCHITECTURES
from engine_core.models.registry import ARCHITECTURES as OWN
from tests.docs.documents import ROOT, Generated


def architectures() -> str:
    """A row for each value."""
    head = "| `general.architecture` | models | run as |\n|---|---|---|\n"
    return head + "".join(map(_row, ARCHITECTURES))


def _row(value: str) -> str:
    meant = [ARCHITECTURES[value], *(variant for _, variant in ARCHITECTURES[value].variants)]
    names = dict.fromkeys(each.name for each in meant)
    runs_as = ", ".join(name if name in OWN else f"{name} (through transformers)" for name in names)
    return f"| `{value}` | {'; '.join(each.models for each in meant)} | {runs_as} |\n"


TABLE = Generated(
    ROOT / "docs" / "reference" / "gguf.md",
    "<!-- By `python -m tests.docs.gguf_table`, which a test runs. -->\n",
    "<!-- End of the table. -->",
    architectures,
)

if __name__ == "__main__":
    TABLE.write()
