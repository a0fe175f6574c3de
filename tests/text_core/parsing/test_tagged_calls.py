"""Values between tags that are too long to be held until they end, and names that are long or many."""

from __future__ import annotations

import json

import pytest

from tests.text_core.parsing.parsing import options_of, parse, shown
from text_core.parsing import tagged_calls
from text_core.parsing.argument_types import TEXT, ArgumentType
from text_core.parsing.marks import mark
from text_core.parsing.parts import ParseOptions

M3 = "]<]minimax[>["
AROUND = {
    "qwen3_coder": ("<tool_call><function=g><parameter=o>", "</parameter></function></tool_call>"),
    "glm45": ("<tool_call>g<arg_key>o</arg_key><arg_value>", "</arg_value></tool_call>"),
    "hy3": (
        "<tool_calls:opensource><tool_call:opensource>g<tool_sep:opensource><arg_key:opensource>o</arg_key:opensource>"
        "<arg_value:opensource>",
        "</arg_value:opensource></tool_call:opensource></tool_calls:opensource>",
    ),
    "deepseek_v32": (
        '<｜DSML｜function_calls><｜DSML｜invoke name="g"><｜DSML｜parameter name="o" string="false">',
        "</｜DSML｜parameter></｜DSML｜invoke></｜DSML｜function_calls>",
    ),
    "minimax_m2": (
        '<minimax:tool_call><invoke name="g"><parameter name="o">',
        "</parameter></invoke></minimax:tool_call>",
    ),
    "minimax_m3": (
        f'{M3}<tool_call>{M3}<invoke name="g">{M3}<o>',
        f"{M3}</o>{M3}</invoke>{M3}</tool_call>",
    ),
    "seed_oss": ("<seed:tool_call><function=g><parameter=o>", "</parameter></function></seed:tool_call>"),
}
"""What surrounds the value of an argument that is an object or null."""
WHOLE = {
    '{"a": ["x", 1234567890, "yyyyyyyyyyyyyyyyyyyy"]} \n': '{"a": ["x", 1234567890, "yyyyyyyyyyyyyyyyyyyy"]}',
    ' {"a": 1}' + " " * 60: '{"a": 1}',
    "{'a': [None, 1234567890, 'yyyyyyyyyyyyyyyyyyyy']} ": '{"a": [null, 1234567890, "yyyyyyyyyyyyyyyyyyyy"]}',
    "1" * 50: "1" * 50,
    'a "text" of more than forty characters, no JSON': json.dumps('a "text" of more than forty characters, no JSON'),
    "{}" + "{} " * 20: json.dumps("{}" + "{} " * 20),
}
"""Values of more than 40 characters, and what they become."""
BROKEN = {
    '{"a": ["xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx", tru]} {"b": 1}': "]} {",
    "{'a': ['xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx', null]} {'b': 1}": "{'b",
    '{"a": 1, "b": ["xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"]}  , "n": 2': ', "n',
    '{"a": ["xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"': "",
}
"""Values that turn out to be malformed behind that, and where."""


@pytest.fixture(autouse=True)
def _forty_characters_are_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tagged_calls, "MAX_HELD", 40)


def parsed_at_every_cut(name: str, text: str) -> list[str | tuple[str, str]]:
    *known, whole = parse(text, options_of(name))
    for at in range(1, len(text)):
        assert parse([text[:at], text[at:]], options_of(name)) == [known[at - 1], known[-1], whole], at
    return shown(whole)


@pytest.mark.parametrize("name", AROUND)
def test_a_long_value_is_what_its_beginning_can_be(name: str) -> None:
    begin, end = AROUND[name]
    for value, expected in WHOLE.items():
        (call,) = parsed_at_every_cut(name, begin + value + end)
        assert call[0] == "g"
        assert json.loads(call[1]) == {"o": json.loads(expected)}


@pytest.mark.parametrize("name", AROUND)
def test_a_call_breaks_off_where_a_long_value_is_malformed(name: str) -> None:
    begin, end = AROUND[name]
    for value, at in BROKEN.items():
        call, rest = parsed_at_every_cut(name, begin + value + end)
        good = value[: value.index(at)] if at else value
        assert rest == value.removeprefix(good) + end
        assert call[0] == "g"
        assert call[1].replace("'", '"').startswith('{"o": ' + good.rstrip().replace("'", '"'))
        with pytest.raises(ValueError, match="Expecting"):
            json.loads(call[1])


def test_a_long_value_may_spell_a_marker() -> None:
    begin, end = AROUND["qwen3_coder"]
    value = '{"a": "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx' + mark("<tool_call>")
    spelled = value.replace(mark("<tool_call>"), "<tool_call>")
    assert parsed_at_every_cut("qwen3_coder", begin + value + '"}' + end) == [("g", f'{{"o": {spelled}"}}}}')]
    call, rest = parsed_at_every_cut("qwen3_coder", begin + value + '"' + mark("<tool_call>") + "x" + end)
    assert (call, rest) == (("g", f'{{"o": {spelled}"'), "x" + end)


def test_names_of_any_length_and_number_may_follow_a_value_without_its_end() -> None:
    names = ["a", "b" * 200, "c" * 3000, *(f"argument_{number}" for number in range(300))]
    types = tuple(ArgumentType(name, TEXT, ("f",)) for name in names)
    options = ParseOptions("qwen3_coder", "none", tool_names=("f",), argument_types=types)
    for follows, value in ((names[1], "1"), (names[-1], "1"), (names[2], f"1\n<parameter={names[2]}>\n2")):
        arguments = f"<parameter=a>\n1\n<parameter={follows}>\n2\n</parameter>"
        text = f"<tool_call>\n<function=f>\n{arguments}\n</function>\n</tool_call>"
        expected = {"a": value} if follows == names[2] else {"a": value, follows: "2"}
        for cut in (text,), list(text), (text[: text.index(follows) + 3], text[text.index(follows) + 3 :]):
            ((name, arguments),) = shown(parse(cut, options)[-1])
            assert (name, json.loads(arguments)) == ("f", expected)
