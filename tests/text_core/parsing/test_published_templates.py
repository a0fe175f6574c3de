"""The checks of published templates, on templates that are written here, and the table of what came of them."""

from __future__ import annotations

import pytest

from tests.docs.documents import Generated
from tests.text_core.parsing.call_templates import CALL_TEMPLATES
from tests.text_core.parsing.published_templates import BEGIN, END, PAGE, check
from text_core.parsing.formats import NONE, REASONING_FORMATS, TOOL_FORMATS


@pytest.mark.parametrize("name", ["hermes", "glm45"])
def test_calls_of_a_template_are_read_and_demanded(name: str) -> None:
    checked = check(name, CALL_TEMPLATES[name])
    assert (checked.faults, checked.calls, checked.tools) == ([], name, NONE)
    assert (checked.prompts, checked.read, checked.demanded) == (36, 9, 6)


def test_a_template_without_tools_has_them_described() -> None:
    checked = check("plain", "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}<|assistant|>")
    assert (checked.faults, checked.calls, checked.tools, checked.prompts) == ([], NONE, "as text", 36)


def test_what_cannot_be_read_back_or_demanded_is_a_fault() -> None:
    positive = CALL_TEMPLATES["hermes"].replace("f.arguments | tojson", "f.arguments | tojson | replace('-7', '7')")
    assert all("read as" in fault for fault in check("positive", positive).faults)
    assert check("positive", positive).read == 6
    spaced = CALL_TEMPLATES["hermes"].replace('"arguments":', '"arguments" :')
    assert all("not allowed" in fault for fault in check("other spaces", spaced).faults)
    assert check("other spaces", spaced).demanded == 0
    assert check("syntax", "{% if %}").faults


def test_the_table_names_formats_that_there_are() -> None:
    rows = Generated(PAGE, BEGIN, END, str).written().split("\n\n")[0].splitlines()[2:]
    cells = [row.strip("| ").split(" | ") for row in rows]
    assert {cell[0] for cell in cells} <= {*TOOL_FORMATS, NONE}
    assert {cell[1] for cell in cells} <= {*REASONING_FORMATS, NONE}
    assert len(cells) > 40
    assert not any("fault" in cell[-1] for cell in cells)
