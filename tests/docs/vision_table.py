"""The table of docs/reference/models.md of the classes that see pictures, read off their registry.

``python -m tests.docs.vision_table`` writes it into the page.
"""

from __future__ import annotations

from engine_core.vision.registry import VISION_MODELS
from tests.docs.documents import ROOT, Generated


def vision_models() -> str:
    """A row for each class."""
    head = "| class | `model_type` | its pictures are encoded by |\n|---|---|---|\n"
    rows = (
        f"| `{name}` | `{model.model_type}` | `{model.__module__.replace('.', '/')}.py` |\n"
        for name, model in VISION_MODELS.items()
    )
    return head + "".join(rows)


TABLE = Generated(
    ROOT / "docs" / "reference" / "models.md",
    "<!-- By `python -m tests.docs.vision_table`, which a test runs. -->\n",
    "<!-- End of the table. -->",
    vision_models,
)

if __name__ == "__main__":
    TABLE.write()
