"""docs/models.md says of every architecture what its configurations in the tests say."""

from engine_core.models.registry import ARCHITECTURES
from tests.docs.models_table import PAGE, table, written


def test_the_table_is_as_it_would_be_written_now():
    assert written() == table(), "run `python -m tests.docs.models_table`"


def test_every_architecture_has_a_row():
    rows = [line.split(" | ")[0].removeprefix("| ") for line in written().splitlines()[2:]]
    assert rows == list(ARCHITECTURES)


def test_the_page_ends_with_what_runs_everything_else():
    assert PAGE.read_text().rfind("\n## ") == PAGE.read_text().find("\n## The fallback\n")
