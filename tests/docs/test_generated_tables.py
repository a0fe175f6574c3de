"""Tables of the documents that programs write are as they would be written now, and leave nothing out."""

from pathlib import Path

import pytest

from engine_core.models.registry import ARCHITECTURES
from engine_core.quantization.registry import STORED
from services.gateway.endpoints import ENDPOINTS
from tests.docs import (
    api_fields,
    errors_table,
    formats_table,
    gguf_table,
    models_table,
    protos_pages,
    published_table,
    quantization_tables,
    vision_table,
)
from tests.docs.documents import Generated


@pytest.mark.parametrize(
    "part",
    [
        api_fields.TABLES,
        errors_table.TABLE,
        formats_table.TABLE,
        gguf_table.TABLE,
        models_table.TABLE,
        models_table.ENCODERS_TABLE,
        published_table.TABLE,
        *quantization_tables.TABLES,
        vision_table.TABLE,
    ],
    ids=lambda part: part.make.__name__,
)
def test_a_part_is_as_it_would_be_written_now(part: Generated) -> None:
    assert part.written() == part.make(), f"run `python -m {part.make.__module__}`"


@pytest.mark.parametrize("page", protos_pages.pages(), ids=lambda page: page.stem)
def test_a_page_of_the_contract_is_as_it_would_be_written_now(page: Path) -> None:
    assert page.read_text() == protos_pages.pages()[page](), "run `python -m tests.docs.protos_pages`"


def test_every_endpoint_of_an_api_has_its_fields_there() -> None:
    posts = {one.path for one in ENDPOINTS if one.method == "POST" and not one.path.startswith("/ringline.")} - {"/"}
    assert {path for path in posts if "{" not in path} == api_fields.ENDPOINTS.keys()


def test_every_architecture_has_a_row() -> None:
    rows = [line.split(" | ")[0].removeprefix("| ") for line in models_table.TABLE.written().splitlines()[2:]]
    assert rows == list(ARCHITECTURES)


def test_every_method_has_a_row() -> None:
    """GGUF has one for each type of block, MXFP4 one for experts; AutoRound stores what others do."""
    assert quantization_tables.EXAMPLES.keys() | {"auto-round", "gguf", "mxfp4"} == STORED.keys()
