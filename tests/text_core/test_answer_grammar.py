"""The grammar of a whole answer: constraints and calls, with and without reasoning before them."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from llguidance import LLMatcher

from tests.text_core.grammar.matching import Compiled, checker
from tests.text_core.parsing.byte_tokenizers import byte_tokenizer
from text_core.answer_grammar import AnswerForm, ToolCalls, answer_grammar
from text_core.grammar.checker import GrammarChecker
from text_core.grammar.constraints import ConstraintError, JsonObject, JsonSchema, Regex
from text_core.grammar.token_table import token_table
from text_core.parsing import formats
from text_core.parsing.tool_grammar import ToolSpec

CALLS = ToolCalls((ToolSpec("f", {"properties": {"a": {"type": "integer"}}, "required": ["a"]}),), required=True)
_JSON_CALL = '{"name": "f", "arguments": {"a": 1}}'
CALLS_OF_F = {
    "hy3": [
        "<tool_calls:opensource><tool_call:opensource>f<tool_sep:opensource><arg_key:opensource>a</arg_key:opensource>"
        "<arg_value:opensource>1</arg_value:opensource></tool_call:opensource></tool_calls:opensource>"
    ],
    "functionary": ['<function=f>{"a": 1}</function>'],
    "functionary_v32": [f"{begin}f\n" + '{"a": 1}' for begin in ("", ">>>")],
    "gigachat3_roles": [f"<|message_sep|>\n\nfunction call<|role_sep|>\n{_JSON_CALL}"],
    "gigachat3": [f"<|function_call|>{_JSON_CALL}"],
    "gemma4": ["<|tool_call>call:f{a:1}<tool_call|>"],
    "functiongemma": ["<start_function_call>call:f{a:1}<end_function_call>"],
    "kimi_k2": [
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>"
        '{"a": 1}<|tool_call_end|><|tool_calls_section_end|>'
    ],
    "kimi_k3": [
        '<|open|>tools<|sep|><|open|>call tool="f" index="9"<|sep|><|open|>argument key="a" type="number"<|sep|>1'
        "<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>"
    ],
    "cohere": ['<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "f", "parameters": {"a": 1}}]<|END_ACTION|>'],
    "lfm2": ["<|tool_call_start|>[f(a=1)]<|tool_call_end|>"],
    "olmo3": ["<function_calls>\nf(a=1)\n</function_calls>"],
    "apertus": ['<|tools_prefix|>[{"f": {"a": 1}}]<|tools_suffix|>'],
    "nemotron_json": ['<TOOLCALL>[{"name": "f", "arguments": {"a": 1}}]</TOOLCALL>'],
    "hunyuan_a13b": ['<tool_calls>[{"name": "f", "arguments": {"a": 1}}]</tool_calls>'],
    "phi4_mini_json": [f"<|tool_call|>{call}<|/tool_call|>" for call in (_JSON_CALL, f"[{_JSON_CALL}]")],
    "internlm2": [
        f"<|action_start|><|plugin|>\n{_JSON_CALL.replace('arguments', key)}<|action_end|>"
        for key in ("parameters", "arguments")
    ],
    "granite": [f"<|tool_call|>[{_JSON_CALL}]"],
    "functools": [f"functools[{_JSON_CALL}]"],
    "minimax_m1": [f"<tool_calls>\n{_JSON_CALL}{more}\n</tool_calls>" for more in ("", f"\n{_JSON_CALL}")],
    "qwen3_coder": ["<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>"],
    "glm45": ["<tool_call>f<arg_key>a</arg_key><arg_value>1</arg_value></tool_call>"],
    "deepseek_v32": [
        f'<｜DSML｜{calls}><｜DSML｜invoke name="f"><｜DSML｜parameter name="a" string="false">1'
        f"</｜DSML｜parameter></｜DSML｜invoke></｜DSML｜{calls}>"
        for calls in ("function_calls", "tool_calls")
    ],
    "minimax_m2": [
        '<minimax:tool_call>\n<invoke name="f">\n<parameter name="a">1</parameter>\n</invoke>\n</minimax:tool_call>'
    ],
    "minimax_m3": [
        ']<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="f">]<]minimax[>[<a>1]<]minimax[>[</a>'
        "]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>"
    ],
    "seed_oss": ["<seed:tool_call>\n<function=f>\n<parameter=a>1</parameter>\n</function>\n</seed:tool_call>"],
    "minicpm5": ['<function name="f"><param name="a">1</param></function>'],
    "solar_open": [
        "<|tool_calls|><|tool_call:begin|>abcdefghij<|tool_call:name|>f<|tool_call:args|>"
        '{"a": 1}<|tool_call:end|><|calls|>'
    ],
    "harmony": [
        '<|channel|>commentary to=functions.f<|message|>{"a": 1}',
        "<|channel|>analysis<|message|>so<|end|><|start|>assistant"
        ' to=functions.f<|channel|>commentary json<|message|>{"a": 1}',
    ],
    "deepseek": [
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{"a": 1}<｜tool▁call▁end｜><｜tool▁calls▁end｜>'
    ],
    "mistral": [
        f'[TOOL_CALLS] [{{"name": "f", "arguments": {{"a": 1}}{with_id}}}]' for with_id in ("", ', "id": "aBcDeFgHi"')
    ],
    "hermes": ['<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'],
    "pythonic": ["[f(a=1)]"],
    "xlam": [f"[{', '.join([_JSON_CALL] * count)}]" for count in (1, 2)],
    "llama3_json": ["; ".join(['{"name": "f", "parameters": {"a": 1}}'] * count) for count in (1, 2)],
}
UNMARKED = {"xlam", "harmony", "pythonic", "llama3_json", "functionary_v32"}
"""Formats in which an answer may begin with a call that has no marker."""
CALL = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'


def compiled(form: AnswerForm) -> Compiled:
    grammar = answer_grammar(form, checker().marker)
    checker().check(grammar)
    return Compiled(grammar)


def test_reasoning_may_come_first_where_it_is_asked_for() -> None:
    free = compiled(AnswerForm(Regex("yes|no"), after_reasoning=True, reasoning="think"))
    assert free.accepts("yes")
    assert free.accepts("<think>hm, no?</think>\n\nyes")
    assert not free.accepts("hm</think>yes")
    inside = compiled(AnswerForm(Regex("yes|no"), True, "think", begins_in_reasoning=True))
    assert inside.accepts("hm</think>yes")
    assert not inside.accepts("yes")
    assert not compiled(AnswerForm(Regex("yes|no"), reasoning="think")).accepts("<think></think>yes")


def test_a_marker_may_come_between_reasoning_and_answer() -> None:
    either = compiled(AnswerForm(Regex("yes|no"), after_reasoning=True, reasoning="solar_open"))
    reasoning = "<|think|>hm<|end|><|begin|>assistant"
    for before in ("", "<|content|>", reasoning, f"{reasoning}<|content|>"):
        assert either.accepts(f"{before}yes")
    assert not either.accepts("<|content|><|content|>yes")


def test_calls_may_follow_reasoning_and_have_no_further_arguments() -> None:
    calls = compiled(AnswerForm(CALLS, True, "think", tool_calls="hermes"))
    assert calls.accepts(f"<think>so</think>{CALL}")
    assert calls.accepts(CALL)
    assert not calls.accepts(CALL.replace('"a": 1', '"a": 1, "b": 2'))


def test_calls_in_channels_may_follow_reasoning_that_the_prompt_began() -> None:
    call = "<|channel|>commentary to=functions.f<|message|>" + '{"a": 1}'
    inside = compiled(AnswerForm(CALLS, True, "harmony", begins_in_reasoning=True, tool_calls="harmony"))
    assert inside.accepts(f"hm<|end|><|start|>assistant{call}")
    assert not inside.accepts(call)
    assert compiled(AnswerForm(CALLS, True, "harmony", tool_calls="harmony")).accepts(call)


@pytest.mark.parametrize("name", sorted(set(formats.TOOL_FORMATS) - UNMARKED))
def test_white_space_may_come_before_demanded_calls(name: str) -> None:
    """As templates write it: some before calls, some before reasoning, others after it."""
    calls = compiled(AnswerForm(CALLS, True, "think", tool_calls=name))
    for call in CALLS_OF_F[name]:
        assert calls.accepts(f"\n\n{call}")
        assert calls.accepts(f"\n<think>so</think>\n\n\n{call}")
        assert not calls.accepts(f"\n\n\n{call}")
        assert calls.accepts(f" {call}")
        assert not calls.accepts(f"  {call}")


def test_words_of_python_stand_for_those_of_json_where_templates_write_them() -> None:
    def demanded(name: str, schema: dict[str, object]) -> Compiled:
        tool = ToolSpec("f", {"properties": {"a": schema}, "required": ["a"]})
        return compiled(AnswerForm(ToolCalls((tool,), required=True), tool_calls=name))

    for name in ("qwen3_coder", "seed_oss", "minicpm5"):
        (call,) = CALLS_OF_F[name]
        said = {word: call.replace("1", word) for word in ("true", "True", "False", "None", "null", "yes")}
        flag = demanded(name, {"type": "boolean"})
        assert [word for word, text in said.items() if flag.accepts(text)] == ["true", "True", "False"]
        optional = demanded(name, {"type": ["integer", "null"]})
        assert [word for word, text in said.items() if optional.accepts(text)] == ["None", "null"]
        listed = demanded(name, {"enum": [True, None]})
        assert [word for word, text in said.items() if listed.accepts(text)] == ["true", "null"]


def test_plain_values_of_pythons_calls_may_be_as_python_writes_them() -> None:
    schema = {"properties": {"s": {"type": "string"}, "b": {"type": "boolean"}, "e": {"enum": ["x"]}}}
    calls = compiled(AnswerForm(ToolCalls((ToolSpec("f", schema),), required=True), tool_calls="lfm2"))
    for arguments in (r"s='a \'b\' \n', b=True, e='x'", 's="a", b=true, e="x"'):
        assert calls.accepts(f"<|tool_call_start|>[f({arguments})]<|tool_call_end|>")
    for arguments in ("s='a", "b='True'", "b=None", "e='y'", "s='a\nb'"):
        assert not calls.accepts(f"<|tool_call_start|>[f({arguments})]<|tool_call_end|>")


def test_arguments_of_gemma_are_sorted_by_name_as_its_template_shows_them() -> None:
    schema = {"properties": {"b": {"type": "integer"}, "a": {"type": "integer"}}}
    calls = compiled(AnswerForm(ToolCalls((ToolSpec("f", schema),), required=True), tool_calls="gemma4"))
    assert calls.accepts("<|tool_call>call:f{a:1,b:2}<tool_call|>")
    assert not calls.accepts("<|tool_call>call:f{b:2,a:1}<tool_call|>")


def test_the_end_of_an_empty_text_may_come_before_calls_of_kimi_k3() -> None:
    (call,) = CALLS_OF_F["kimi_k3"]
    thought = "<|open|>think<|sep|>Hm.<|close|>think<|sep|><|open|>response<|sep|><|close|>response<|sep|>"
    calls = compiled(AnswerForm(CALLS, True, "kimi_k3", tool_calls="kimi_k3"))
    for before in ("", "<|close|>response<|sep|>", thought):
        assert calls.accepts(before + call)
    assert not calls.accepts(f"So.<|close|>response<|sep|>{call}")


def accepts_with_tokens(form: AnswerForm, text: str) -> bool:
    """Whether a model allows a text in which the format's markers are special tokens."""
    tokenizer = byte_tokenizer([*formats.TOOL_FORMATS[form.tool_calls].markers, "</s>"])
    end = [tokenizer.token_id("</s>") or 0]
    marker = GrammarChecker(tokenizer, tokenizer.vocab_size, end).marker
    table = token_table(tokenizer, tokenizer.vocab_size, end, with_slices=False)
    matcher = LLMatcher(table, answer_grammar(form, marker), log_level=0)
    ids = tokenizer.encode(text)
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


def test_calls_of_newer_mistral_models_may_have_ids() -> None:
    said = {"[CALL_ID]a1B2c3D4e[ARGS]": True, "[ARGS]": True, "[CALL_ID]a1[ARGS]": False, "": False}
    for between, allowed in said.items():
        text = f'[TOOL_CALLS]f{between}{{"a": 1}}'
        assert accepts_with_tokens(AnswerForm(CALLS, tool_calls="mistral"), text) == allowed


def test_calls_of_kimi_k3_may_come_behind_text_that_ends_in_tokens() -> None:
    form = AnswerForm(
        replace(CALLS, tools=(replace(CALLS.tools[0], strict=True),), required=False), tool_calls="kimi_k3"
    )
    (call,) = CALLS_OF_F["kimi_k3"]
    for text in ("So.", "So.<|close|>response<|sep|>", f"So.<|close|>response<|sep|>{call}"):
        assert accepts_with_tokens(form, text)
    for text in (f"So.{call}", "So.<|close|>response<|sep|>" + call.replace("1", "x")):
        assert not accepts_with_tokens(form, text)


@pytest.mark.parametrize("name", formats.TOOL_FORMATS)
@pytest.mark.parametrize("reasoning", ["none", "think"])
def test_a_form_beside_calls(name: str, reasoning: str) -> None:
    """An answer is calls or has the form, and nothing else."""
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "b": {}},
        "required": ["name"],
        "additionalProperties": False,
    }
    tool = ToolSpec("f", {"properties": {"a": {"type": "integer"}}, "required": ["a"]}, strict=True)
    thought = "" if reasoning == "none" or name == "harmony" else "<think>so</think>\n"
    final = "<|channel|>final<|message|>" if name == "harmony" else ""

    def grammar(tool: ToolSpec, *, single: bool = False, required: bool = False) -> Compiled:
        calls = ToolCalls((tool,), required, single, JsonSchema(json.dumps(schema)))
        return compiled(AnswerForm(calls, bool(thought), reasoning, tool_calls=name))

    either = grammar(tool)
    for text in ('{"name": "f"}', '{"name": "g", "b": [1, {"c": null}]}'):
        assert either.accepts(f"{thought}{final}{text}")
    for call in CALLS_OF_F[name]:
        assert either.accepts(thought + call)
        quote = {"gemma4": '<|"|>', "functiongemma": "<escape>"}.get(name, '"')
        other = call.replace("1", f"{quote}1{quote}")
        assert not either.accepts(thought + other)
        assert not either.accepts(f"Hello {call}")
        assert grammar(tool, required=True).accepts(thought + call)
        assert grammar(replace(tool, strict=False)).accepts(thought + other)
    for text in ("Hello", '{"b": 1}', "[]"):
        assert not either.accepts(f"{thought}{final}{text}")
    assert not grammar(tool, required=True).accepts(thought + final + '{"name": "g"}')


def test_a_form_may_follow_messages_in_channels() -> None:
    calls = ToolCalls((ToolSpec("f", {}),), form=Regex("yes|no"))
    for begun in (True, False):
        either = compiled(AnswerForm(calls, True, "harmony", begun, "harmony"))
        before = "" if begun else "<|channel|>analysis<|message|>"
        assert either.accepts(f"{before}hm<|end|><|start|>assistant<|channel|>final<|message|>yes")
        assert either.accepts(
            f"{before}hm<|end|><|start|>assistant<|channel|>commentary to=functions.f<|message|>" + "{}"
        )
        assert not either.accepts(f"{before}hm<|end|><|start|>assistant<|channel|>final<|message|>perhaps")


def test_parameters_nested_too_deep_are_refused() -> None:
    deep: dict[str, object] = {}
    for _ in range(5_000):
        deep = {"items": deep}
    with pytest.raises(ConstraintError, match="nest too deep"):
        answer_grammar(AnswerForm(ToolCalls((ToolSpec("f", deep),), True), tool_calls="hermes"), checker().marker)


@pytest.mark.parametrize(
    ("form", "field"),
    [
        (AnswerForm(Regex("a"), after_reasoning=True), "after_reasoning"),
        (AnswerForm(Regex("(?=a)")), "regex"),
        (AnswerForm(CALLS), "tool_calls"),
        (AnswerForm(replace(CALLS, form=Regex("(?=a)")), tool_calls="hermes"), "tool_calls.form.regex"),
        (
            AnswerForm(replace(CALLS, required=False, form=JsonObject(True)), tool_calls="llama3_json"),
            "tool_calls.form.any_whitespace",
        ),
        (
            AnswerForm(ToolCalls((ToolSpec("f", {"not": {}}),), required=True), tool_calls="hermes"),
            "tool_calls.tools[0].parameters_json",
        ),
    ],
)
def test_what_is_wrong_is_named(form: AnswerForm, field: str) -> None:
    with pytest.raises(ConstraintError) as refused:
        answer_grammar(form, checker().marker)
    assert refused.value.field == field
