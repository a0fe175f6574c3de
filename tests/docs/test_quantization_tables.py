"""docs/quantization.md says of every format and family what the methods and the configurations say."""

import pytest

from engine_core.quantization.registry import STORED
from tests.docs.quantization_tables import EXAMPLES, TABLES, written


@pytest.mark.parametrize("table", TABLES)
def test_the_tables_are_as_they_would_be_written_now(table):
    assert written(table) == TABLES[table](), "run `python -m tests.docs.quantization_tables`"


def test_every_method_has_a_row():
    """Those of the last two have rows for each type of block, and for experts."""
    assert EXAMPLES.keys() | {"gguf", "mxfp4"} == STORED.keys()
