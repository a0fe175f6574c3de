import itertools
import json
import time
from contextlib import suppress
from datetime import datetime

import jinja2
import pytest
from transformers import PreTrainedTokenizerFast

from tests.text_core import chat_template_samples
from tests.text_core.trained_tokenizers import tokenizer_json
from text_core import template_budget, template_sandbox
from text_core.chat_templates import ChatTemplateError, ChatTemplates, TemplateSource
from text_core.tokenizer_files import TokenizerError

CONFIG = {"bos_token": "<s>", "eos_token": "</s>", "tokenizer_class": "PreTrainedTokenizerFast"}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Tells the weather of a <city> & more",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    },
    {"type": "function", "function": {"name": "now", "description": "zeit “jetzt”", "parameters": {}}},
]
PLAIN = [
    {"role": "user", "content": " Hello! "},
    {"role": "assistant", "content": "Hi 😀.\n"},
    {"role": "user", "content": "What's\n\n2 < 3 & 'more'?"},
]
SYSTEM = [{"role": "system", "content": "Be   brief."}, *PLAIN]
CALLS = [
    {"role": "user", "content": "Weather in Zürich?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": {"city": "Zürich"}}}
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "name": "weather", "content": '{"degrees": 21}'},
]
REASONED = [*PLAIN, {"role": "assistant", "reasoning": "It is so.", "content": "Yes."}]
PARTS = [{"role": "user", "content": [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]}]
LAST = [*SYSTEM, {"role": "assistant", "content": "The answer  "}]
LAST_PARTS = [*PARTS, {"role": "assistant", "content": [{"type": "text", "text": "so it "}, {"type": "image"}]}]


@pytest.fixture
def load(tmp_path, byte_level):
    """Ours and transformers' view of one directory with the given configuration."""

    def load(config, files=()):
        (tmp_path / "tokenizer.json").write_text(tokenizer_json(byte_level))
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(CONFIG | config))
        for name, text in dict(files).items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(text)
        contents = {p.relative_to(tmp_path).as_posix(): p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
        return ChatTemplates.from_files(contents), PreTrainedTokenizerFast.from_pretrained(tmp_path)

    return load


def only(template, **options):
    return ChatTemplates({"default": TemplateSource(template)}, **options)


def outcome(render, chat, **arguments):
    try:
        return render(chat, **arguments)
    except Exception:
        return "refused"


STYLES = {name: getattr(chat_template_samples, name) for name in ("HEADERS", "CHATML", "BRACKETS", "DOCUMENTS")}
CHATS = {"plain": PLAIN, "system": SYSTEM, "calls": CALLS, "reasoned": REASONED, "parts": PARTS, "last": LAST}


@pytest.mark.parametrize("style", STYLES)
def test_rendering_equals_transformers(load, style):
    ours, theirs = load({"chat_template": STYLES[style]})
    rendered = set()
    for (name, chat), tools, prompt, arguments in itertools.product(
        CHATS.items(), (None, [], TOOLS), (False, True), ({}, {"enable_thinking": False, "date_string": "1 Jan 2024"})
    ):
        documents = [{"title": "T", "text": name}] if tools else None
        shown = None if style == "DOCUMENTS" else tools  # it has no place for tools
        same = {"tools": shown, "documents": documents, "add_generation_prompt": prompt}
        expected = outcome(theirs.apply_chat_template, chat, tokenize=False, **same, **arguments)
        got = outcome(ours.render, chat, **same, template_args=arguments)
        assert got == expected, (name, tools, prompt, arguments)
        if documents:
            del same["documents"]
            got = outcome(ours.render, chat, **same, template_args={**arguments, "documents": documents})
            assert got == expected, "documents may be among the arguments"
        rendered.add(got)
    assert len(rendered - {"refused"}) >= 6


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize(
    "chat", [PLAIN, SYSTEM, LAST, CALLS, REASONED, PARTS, LAST_PARTS, [{"role": "user", "content": ""}]]
)
def test_continuing_the_final_message_equals_transformers(load, style, chat):
    ours, theirs = load({"chat_template": STYLES[style]})
    expected = outcome(theirs.apply_chat_template, chat, continue_final_message=True, tokenize=False)
    got = outcome(ours.render, chat, add_generation_prompt=False, continue_final_message=True)
    assert got == expected


def test_named_templates_are_chosen_as_transformers_does(load):
    named = [{"name": "default", "template": "D{{ messages | length }}"}, {"name": "tool_use", "template": "T"}]
    ours, theirs = load({"chat_template": named})
    for tools in (None, [], TOOLS):
        expected = theirs.apply_chat_template(PLAIN, tools=tools, tokenize=False)
        assert ours.render(PLAIN, tools=tools) == expected
    assert ours.render(PLAIN, template_name="tool_use") == "T"
    with pytest.raises(ChatTemplateError, match="expected one of default, tool_use"):
        ours.render(PLAIN, template_name="other")


def test_template_files_replace_the_configuration(load):
    files = {"chat_template.jinja": "F{{ eos_token }}", "additional_chat_templates/tool_use.jinja": "extra"}
    ours, theirs = load({"chat_template": "C"}, files)
    assert sorted(ours.names) == ["default", "tool_use"]
    for tools in (None, TOOLS):
        assert ours.render(PLAIN, tools=tools) == theirs.apply_chat_template(PLAIN, tools=tools, tokenize=False)


def test_strftime_now_formats_the_clock():
    chat = only("{{ strftime_now('%Y-%m-%d') }}", now=lambda: datetime(2031, 5, 6))
    assert chat.render(PLAIN) == "2031-05-06"


def test_messages_are_left_as_they_were():
    chat = json.loads(json.dumps(LAST_PARTS))
    only(chat_template_samples.CHATML).render(chat, add_generation_prompt=False, continue_final_message=True)
    assert chat == LAST_PARTS


@pytest.mark.parametrize(
    ("template", "arguments", "message"),
    [
        ("x", {"messages": []}, "at least one message"),
        ("x", {"continue_final_message": True}, "and add_generation_prompt are both set"),
        ("x", {"template_args": {"tools": 1}}, "must not be named tools"),
        ("{{ raise_exception('no\n such role') }}", {}, "the chat template failed: no such role"),
        ("{{ messages[7].content.x }}", {}, "the chat template failed: .* has no "),
        ("a\n{% if %}", {}, "error in line 2"),
        ("{{ 1 | frobnicate }}", {}, "No filter named 'frobnicate'"),
        ("{{ '\\ud800' }}", {}, "not valid Unicode"),
        ("{% include 'x' %}", {}, "the chat template failed"),
        ("{% for a in [1] %}" * 30 + "{% endfor %}" * 30, {}, "nests too deeply"),
        ("{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}", {}, "nests too deeply"),
        ("x" * (1 << 20) + "y", {}, "longer than"),
    ],
)
def test_an_error_is_one_sentence(template, arguments, message):
    arguments = {"messages": PLAIN} | arguments
    with pytest.raises(ChatTemplateError, match=message) as raised:
        only(template).render(arguments.pop("messages"), **arguments)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 400


BROKEN = "a\n{% if %}"


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"chat_template.jinja": BROKEN}, r"^chat_template\.jinja has an error in line 2: "),
        (
            {"chat_template.jinja": "x", "additional_chat_templates/rag.jinja": BROKEN},
            r"^additional_chat_templates/rag\.jinja has an error in line 2: ",
        ),
        (
            {"tokenizer_config.json": json.dumps({"chat_template": BROKEN})},
            r"^chat_template of tokenizer_config\.json has an error in line 2: ",
        ),
        (
            {"tokenizer_config.json": json.dumps({"chat_template": [{"name": "tool_use", "template": BROKEN}]})},
            r"^chat_template of tokenizer_config\.json \(tool_use\) has an error in line 2: ",
        ),
        ({"chat_template.jinja": "{{ 1 | frobnicate }}"}, r"^chat_template\.jinja has an error .* 'frobnicate'"),
        ({"chat_template.jinja": b"\xff"}, r"^chat_template\.jinja is not UTF-8"),
        ({"tokenizer_config.json": '{"chat_template": 7}'}, r"^chat_template of tokenizer_config\.json must be text"),
    ],
)
def test_a_broken_template_is_found_before_the_first_chat(files, message):
    contents = {name: text if isinstance(text, bytes) else text.encode() for name, text in files.items()}
    with pytest.raises((ChatTemplateError, TokenizerError), match=message):
        ChatTemplates.from_files(contents)


def test_a_model_without_templates_says_so():
    with pytest.raises(ChatTemplateError, match=r"no chat template .*--chat-template FILE, or send the prompt as text"):
        ChatTemplates({}).render(PLAIN)


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.__class__ }}",
        "{% set ns = namespace(__class__=1) %}",
        "{% set ns = namespace() %}{% set ns._x = 1 %}{{ raise_exception.__globals__ }}",
        "{{ strftime_now.__globals__ }}{{ 1 / 0 }}",
    ],
)
def test_the_sandbox_lets_nothing_out(template):
    with suppress(ChatTemplateError):
        assert only(template).render(PLAIN) == ""


@pytest.mark.parametrize(
    "template",
    [
        "{% set r = range(100000) %}{% for a in r %}{% for b in r %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{% if n %}{% set a = f(n - 1) %}{% set a = f(n - 1) %}{% endif %}{% endmacro %}{{ f(60) }}",
        "{% for a in range(100000) if range(100000) | select('eq', -1) | list %}{% endfor %}",
        "{% for a in range(100000) if range(100000) | map('upper') | select | list == 1 %}{% endfor %}",
    ],
)
def test_what_runs_for_ever_is_stopped(monkeypatch, template):
    monkeypatch.setattr(template_budget, "TIME_LIMIT_S", 0.2)
    with pytest.raises(ChatTemplateError, match=r"it took more than 0\.2 s of processor time"):
        only(template).render(PLAIN)


TOO_MUCH = (
    "holds more|seeks a text|chat is longer than|bits|not allowed|Range too big|unsafe|must not|No filter|is undefined"
)
TWICE = "{% set ns = namespace(x='x') %}{% for i in range(60) %}{% set ns.x = TWICE %}{% endfor %}"
HOARD = (
    "{% set long = 'xy' * 50000 %}{% set short = range(1000) | list %}"
    "{% set ns = namespace(all=none, keys=dict.fromkeys(range(1000))) %}"
    "{% for i in range(3000) %}{% set ns.all = (MADE, ns.all) %}{% endfor %}"
)
"""Keeps all that it makes."""


@pytest.mark.parametrize(
    "template",
    [
        "{% for a in range(100000) %}{{ 'x' * 100 }}{% endfor %}",
        "{{ range(1000000) | list }}",
        "{% macro twice(x) %}{{ x }}{{ x }}{% endmacro %}" + TWICE.replace("TWICE", "twice(ns.x)"),
        TWICE.replace("TWICE", "ns.x + ns.x"),
        TWICE.replace("TWICE", "ns.x ~ ns.x"),
        TWICE.replace("TWICE", "[ns.x, ns.x] | join"),
        TWICE.replace("TWICE", "ns.x | replace('x', 'xx')"),
        TWICE.replace("TWICE", "ns.x.replace('x', 'xx')"),
        TWICE.replace("TWICE", "''.join([ns.x, ns.x])"),
        TWICE.replace("TWICE", "[ns.x, ns.x]") + "{{ ns.x | tojson }}",
        *(
            pytest.param(TWICE.replace("TWICE", "[ns.x, ns.x]") + end, marks=pytest.mark.wide)
            for end in ("{{ ns.x }}", "{{ ns.x | string }}")
        ),
        *(TWICE.replace("TWICE", "[ns.x, ns.x]") + end for end in ("{{ ns }}", "{{ {1: ns.x}.items() }}")),
        TWICE.replace("TWICE", "'%s%s' % (ns.x, ns.x)"),
        TWICE.replace("TWICE", "'%s%s' | format(ns.x, ns.x)"),
        TWICE.replace("TWICE", "'{0}{0}'.format(ns.x)"),
        "{{ ([[0] * 100000] * 1000) | sum(start=[]) | length }}",
        HOARD.replace("MADE", "long[i:]"),
        HOARD.replace("MADE", "long.swapcase() ~ i"),
        HOARD.replace("MADE", "long | upper"),
        HOARD.replace("MADE", "long.title()"),
        HOARD.replace("MADE", "long.split('y')"),
        HOARD.replace("MADE", "range(100000) | list"),
        HOARD.replace("MADE", "range(100000) | map('default', *short)"),
        HOARD.replace("MADE", "dict(ns.keys)"),
        HOARD.replace("MADE", "namespace(ns.keys)"),
        HOARD.replace("MADE", f"[{'0, ' * 1000}]"),
        "{% set ns = namespace(x=9) %}{% for i in range(60) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
        "{{ ('x' * 10 ** 12) | length }}",
        "{{ ([0] * 10 ** 12) | length }}",
        "{{ 9 ** (9 ** 9) > 0 }}",
        "{{ ('%1000000000d' % 1) | length }}",
        "{{ ('%*d' % (1000000000, 1)) | length }}",
        "{{ ('%1000000000d' | format(1)) | length }}",
        "{{ ('{:>1000000000}'.format(1)) | length }}",
        "{{ ('{0}' * 100000).format('a' * 100000) | length }}",
        "{{ ('{x}' * 100000).format_map({'x': 'a' * 100000}) | length }}",
        "{{ ('a' * 500000).strip('b' * 500000 ~ 'a') | length }}",
        "{{ ('a' * 500000) | trim('b' * 500000 ~ 'a') | length }}",
        "{{ ('a' * 400000).rfind('ab' ~ 'a' * 200000) }}",
        "{{ ('a ' * 4000000) | title | length }}",
        "{{ ('a ' * 4000000).split() | length }}",
        "{{ ('ab' * 4000000) | sort | length }}",
        "{{ ('{:{}}'.format(1, 1000000000)) | length }}",
        "{{ ('x'.ljust(1000000000)) | length }}",
        "{{ ('x' | center(1000000000)) | length }}",
        "{{ ('x\n' | indent(1000000000, true)) | length }}",
        "{{ 5 | round(-1000000000) }}",
        "{{ ((1).to_bytes(1000000000, 'big')) | length }}",
        "{{ ([] | tojson(indent=1000000000)) | length }}",
        "{{ lipsum(n=100000) }}",
    ],
)
def test_what_grows_without_end_is_stopped(monkeypatch, template):
    monkeypatch.setattr(template_budget, "TIME_LIMIT_S", 60.0)
    with pytest.raises(ChatTemplateError, match=TOO_MUCH):
        only(template).render(PLAIN)


DOUBLED = (
    "{% set ns = namespace(a=[1], b=[1], t=(1,), d={1: 1}) %}{% for i in range(60) %}{% set ns.t = (ns.t, ns.t) %}"
    "{% set ns.a, ns.b, ns.d = [ns.a, ns.a], [ns.b, ns.b], {1: ns.d, 2: ns.d} %}{% endfor %}"
)
"""Values of 2^60 items, of which few are distinct."""


@pytest.mark.parametrize(
    "expression",
    [
        "ns.a == ns.b",
        "1 < 2 != ns.a < ns.b",
        "ns.a in [ns.b]",
        "ns.a not in [ns.b]",
        "{ns.t: 1}",
        "{1: 2}[ns.t]",
        "{1: 2}.get(ns.t)",
        "dict([(ns.t, 1)])",
        "dict.fromkeys([ns.t])",
        "{1: 2}.keys() - [ns.t]",
        "[ns.b].count(ns.a)",
        "[ns.b].index(ns.a)",
        "[ns.a, ns.b] | sort",
        "[ns.t, ns.t] | unique | list",
        "[{'x': ns.a}, {'x': ns.b}] | groupby('x')",
        "[[ns.a], [ns.b]] | map('first') | max",
        "[ns.a] | select('eq', ns.b) | list",
        "ns.a is eq ns.b",
        "ns.a is in [ns.b]",
        "ns.d == ns.d.copy()",
        "'%s' % ns.d",
        "ns.a | upper",
        "ns.a | e",
        "ns.a | trim",
        "ns.t | wordcount",
        "[('k', ns.a)] | urlencode",
        "ns.a in ([ns.b] | select)",
        "0 < 1 < ns.a < ns.b",
    ],
)
def test_a_comparison_of_shared_parts_is_stopped(monkeypatch, expression):
    monkeypatch.setattr(template_budget, "TIME_LIMIT_S", 60.0)
    with pytest.raises(ChatTemplateError, match=r"compares a value of more than|holds more than"):
        only(f"{DOUBLED}{{{{ ({expression}) | string | length }}}}").render(PLAIN)


def test_what_nests_too_deep_is_not_hashed():
    nested = "{% set ns = namespace(t=(1,)) %}{% for i in range(COUNT) %}{% set ns.t = (ns.t,) %}{% endfor %}"
    assert only(nested.replace("COUNT", "100") + "{{ {ns.t: 1} | length }}").render(PLAIN) == "1"
    with pytest.raises(ChatTemplateError, match="nests deeper than 200 levels"):
        only(nested.replace("COUNT", "1000") + "{{ {ns.t: 1} | length }}").render(PLAIN)


def test_comparisons_are_those_of_jinja():
    template = (
        "{% set c = cycler(1, 2, 3) %}{{ 0 < c.next() < 3 }} {{ c.current }} {{ 3 in [1, 3] | select }}"
        "{% set t = [1, 2] %}{{ 1 < t[0] + 1 <= t[1] != 3 }} {{ t == [1, 2] }} {{ t != t }} {{ [1] in [t] }}"
        "{{ t not in [t] }} {{ t[0] > t[1] }} {{ t[1] >= t[0] }} {{ t is eq t }} {{ t[0] in t }}"
    )
    assert only(template).render(PLAIN) == jinja2.Environment().from_string(template).render()


def test_long_chats_are_within_the_limits():
    chat = [{"role": role, "content": "word " * 200} for role in ("user", "assistant") * 500]
    rendered = only(chat_template_samples.CHATML).render(chat)
    assert rendered.count("<|im_start|>") == 1001


def test_a_prompt_may_be_gathered_in_a_namespace():
    gather = (
        "{% set ns = namespace(out='') %}{% for message in messages %}"
        "{% set ns.out = ns.out ~ '<' ~ message.role ~ '>' %}{% set ns.out = ns.out + message.content | trim %}"
        "{% endfor %}{{ ns.out }}"
    )
    chat = [{"role": role, "content": "long words " * 300} for role in ("user", "assistant") * 150]
    assert only(gather).render(chat) == "".join(f"<{each['role']}>{each['content'].strip()}" for each in chat)


def test_a_template_may_make_more_than_it_holds():
    again = "{% for i in range(200) %}{% set once = ('x' * 1000000) ~ i %}{% endfor %}{{ 'done' }}"
    assert only(again).render(PLAIN) == "done"


def test_time_in_which_others_run_does_not_count(monkeypatch):
    monkeypatch.setattr(template_budget, "TIME_LIMIT_S", 0.2)
    environment = template_sandbox.BoundedEnvironment()
    template = environment.template("{{ wait() }}{% for i in range(3) %}{{ i }}{% endfor %}")
    assert environment.render(template, {"wait": lambda: time.sleep(0.5) or "waited "}) == "waited 012"


def test_the_formats_are_those_of_the_template_that_is_rendered():
    hermes = "{{ messages | length }}<tool_call></tool_call>{{ tools }}"
    templates = ChatTemplates(
        {"default": TemplateSource("{{ messages | length }}<think></think>"), "tool_use": TemplateSource(hermes)}
    )
    assert templates.formats(None, has_tools=False) == ("none", "think")
    assert templates.formats(None, has_tools=True) == ("hermes", "none")
    assert templates.formats("default", has_tools=True) == ("hermes", "think"), "they are described in the prompt"
    assert templates.formats("another", has_tools=False) == ("none", "none")
    assert ChatTemplates({}).formats(None, has_tools=False) == ("none", "none")
