"""Chat templates that write a call in each format, as briefly as that can be said."""

from __future__ import annotations


def _template(call: str, around: tuple[str, str] = ("", "")) -> str:
    """``call`` shows ``f``, a call's name and arguments, in Jinja; ``around``: what stands around all calls."""
    calls = "{% for call in m.tool_calls %}{% set f = call.function %}" + call + "{% endfor %}"
    shown = "{% if m.tool_calls %}" + around[0] + calls + around[1] + "{% endif %}{{ m.content or '' }}"
    return "{% for m in messages %}<|{{ m.role }}|>" + shown + "{% endfor %}<|assistant|>"


def _tagged(name: str, key: str, value: str, end: str, *, quoted: str = "tojson") -> str:
    """A call whose arguments stand between tags."""
    shown = "{{ v if v is string else v | " + quoted + " }}"
    argument = key.replace("K", "{{ k }}") + value.replace("V", shown)
    return name.replace("F", "{{ f.name }}") + "{% for k, v in f.arguments | items %}" + argument + "{% endfor %}" + end


_JSON = '{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}}'
_LIST = _JSON + "{{ ', ' if not loop.last }}"
_PYTHON = (
    "{{ f.name }}({% for k, v in f.arguments | items %}{{ k }}={{ v | tojson }}{{ ', ' if not loop.last }}{% endfor %})"
)
_GEMMA = (
    '{% macro shown(v) %}{% if v is string %}<|"|>{{ v }}<|"|>{% elif v is mapping %}'
    "{ {%- for k, each in v | items %}{{ k }}:{{ shown(each) }}{{ ',' if not loop.last }}{% endfor -%} }"
    "{% elif v is sequence %}"
    "[{% for each in v %}{{ shown(each) }}{{ ',' if not loop.last }}{% endfor %}]"
    "{% else %}{{ v | tojson }}{% endif %}{% endmacro %}"
)
_HY3 = _tagged(
    "<tool_call:opensource>F<tool_sep:opensource>",
    "<arg_key:opensource>K</arg_key:opensource>",
    "<arg_value:opensource>V</arg_value:opensource>",
    "</tool_call:opensource>",
)
_ELEMENTS = (
    "{% macro elements(v) %}{% if v is mapping %}{% for k, each in v | items %}"
    "]<]minimax[>[<{{ k }}>{{ elements(each) }}]<]minimax[>[</{{ k }}>{% endfor %}"
    "{% elif v is iterable and v is not string %}{% for each in v %}"
    "]<]minimax[>[<item>{{ elements(each) }}]<]minimax[>[</item>{% endfor %}"
    "{% else %}{{ v if v is string else v | tojson }}{% endif %}{% endmacro %}"
)
_DSML = _tagged(
    '<｜DSML｜invoke name="F">',
    "<｜DSML｜parameter name=\"K\" string=\"{{ 'true' if v is string else 'false' }}\">",
    "V</｜DSML｜parameter>",
    "</｜DSML｜invoke>",
)

_K3 = (
    "{% set type = 'string' if v is string else 'number' if v is number and v is not boolean else 'array' %}"
    '<|open|>argument key="{{ k }}" type="{{ type }}"<|sep|>'
    "{{ v if v is string else v | tojson }}<|close|>argument<|sep|>"
)

_GEMMA_CALLS = _GEMMA + (
    _template(
        "<|tool_call>call:{{ f.name }}{ {%- for k, v in f.arguments | items %}{{ k }}:{{ shown(v) }}"
        "{{ ',' if not loop.last }}{% endfor -%} }<tool_call|>"
    )
)

CALL_TEMPLATES = {
    "hermes": _template("<tool_call>\n" + _JSON + "\n</tool_call>"),
    "qwen3_coder": _template(
        "<tool_call>\n"
        + _tagged("<function=F>\n", "<parameter=K>\n", "V\n</parameter>\n", "</function>\n")
        + "</tool_call>\n"
    ),
    "seed_oss": _template(
        "<seed:tool_call>"
        + _tagged("<function=F>", "<parameter=K>", "V</parameter>", "</function>", quoted="string")
        + "</seed:tool_call>"
    ),
    "glm45": _template(
        _tagged("<tool_call>F\n", "<arg_key>K</arg_key>\n", "<arg_value>V</arg_value>\n", "</tool_call>\n")
    ),
    "hy3": _template(_HY3, ("<tool_calls:opensource>", "</tool_calls:opensource>")),
    "deepseek_v32": _template(_DSML, ("<｜DSML｜function_calls>", "</｜DSML｜function_calls>")),
    "gemma4": _GEMMA_CALLS,
    "functiongemma": _GEMMA_CALLS.replace('<|"|>', "<escape>")
    .replace("<|tool_call>", "<start_function_call>")
    .replace("<tool_call|>", "<end_function_call>"),
    "minimax_m2": _template(
        _tagged('<invoke name="F">', '<parameter name="K">', "V</parameter>", "</invoke>"),
        ("<minimax:tool_call>", "</minimax:tool_call>"),
    ),
    "minicpm5": _template(
        _tagged('<function name="F">', '<param name="K">', "V</param>", "</function>", quoted="string")
    ),
    "minimax_m3": _ELEMENTS
    + _template(
        ']<]minimax[>[<invoke name="{{ f.name }}">{{ elements(f.arguments) }}]<]minimax[>[</invoke>\n',
        ("]<]minimax[>[<tool_call>\n", "]<]minimax[>[</tool_call>"),
    ),
    "kimi_k2": _template(
        "<|tool_call_begin|>functions.{{ f.name }}:{{ loop.index0 }}<|tool_call_argument_begin|>"
        "{{ f.arguments | tojson }}<|tool_call_end|>",
        ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
    ),
    "kimi_k3": _template(
        '<|open|>call tool="{{ f.name }}" index="{{ loop.index }}"<|sep|>'
        "{% for k, v in f.arguments | items %}" + _K3 + "{% endfor %}<|close|>call<|sep|>",
        ("<|open|>tools<|sep|>", "<|close|>tools<|sep|>"),
    ),
    "solar_open": _template(
        "<|tool_call:begin|>{{ call.id }}<|tool_call:name|>{{ f.name }}<|tool_call:args|>{{ f.arguments | tojson }}"
        "<|tool_call:end|>",
        ("<|tool_calls|>", "<|calls|>"),
    ),
    "deepseek": _template(
        "<｜tool▁call▁begin｜>{{ f.name }}<｜tool▁sep｜>{{ f.arguments | tojson }}<｜tool▁call▁end｜>",
        ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
    ),
    "cohere": _template(
        '{"tool_call_id": "{{ loop.index0 }}", "tool_name": "{{ f.name }}", "parameters": {{ f.arguments | tojson }}}'
        "{{ ', ' if not loop.last }}",
        ("<|START_ACTION|>[", "]<|END_ACTION|>"),
    ),
    "lfm2": _template(_PYTHON + "{{ ', ' if not loop.last }}", ("<|tool_call_start|>[", "]<|tool_call_end|>")),
    "olmo3": _template(_PYTHON + "\n", ("<function_calls>", "</function_calls>")),
    "pythonic": _template(_PYTHON + "{{ ', ' if not loop.last }}", ("[", "]")),
    "apertus": _template(
        '{"{{ f.name }}": {{ f.arguments | tojson }}}{{ ", " if not loop.last }}',
        ("<|tools_prefix|>[", "]<|tools_suffix|>"),
    ),
    "nemotron_json": _template(_LIST, ("<TOOLCALL>[", "]</TOOLCALL>")),
    "minimax_m1": _template(_JSON + "\n", ("<tool_calls>\n", "</tool_calls>")),
    "hunyuan_a13b": _template(_LIST, ("<tool_calls>[", "]</tool_calls>")),
    "phi4_mini_json": _template(_LIST, ("<|tool_call|>[", "]<|/tool_call|>")),
    "internlm2": _template("<|action_start|><|plugin|>\n" + _JSON + "<|action_end|>"),
    "granite": _template(_LIST, ("<|tool_call|>[", "]")),
    "functools": _template(_LIST, ("functools[", "]")),
    "gigachat3": _template("<|function_call|>" + _JSON),
    "gigachat3_roles": _template("<|message_sep|>\n\nfunction call<|role_sep|>\n" + _JSON + "<|message_sep|>\n\n"),
    "functionary": _template("<function={{ f.name }}>{{ f.arguments | tojson }}</function>"),
    "functionary_v32": _template(">>>{{ f.name }}\n{{ f.arguments | tojson }}"),
    "mistral": _template("[TOOL_CALLS]{{ f.name }}[ARGS]{{ f.arguments | tojson }}"),
    "xlam": _template(_LIST, ("[", "]")),
    "llama3_json": _template('{"name": "{{ f.name }}",\n"parameters": {{ f.arguments | tojson }}}'),
    "harmony": _template(
        " to=functions.{{ f.name }}<|channel|>commentary json<|message|>{{ f.arguments | tojson }}<|call|>"
    ),
}
"""Templates by the name of the format."""
OTHER_FORMS = {
    "mcp": _template("<use_mcp_tool><tool_name>{{ f.name }}</tool_name>{{ f.arguments | tojson }}</use_mcp_tool>"),
    "yaml": _template("<tool_call>\nname: {{ f.name }}\narguments: {{ f.arguments }}\n</tool_call>"),
    "elements": _template(_tagged('<call name="F">', '<param name="K">', "V</param>", "</call>")),
    "lines": _template("{{ f.name }}\n{{ f.arguments | tojson }}"),
    "recipients": _template(">>{{ f.name }}\n{{ f.arguments | tojson }}"),
    "numbered json": _template("<tool_call>1. " + _JSON + "</tool_call>"),
    "renamed": _template('{"function": "{{ f.name }}", "parameters": {{ f.arguments | tojson }}}'),
}
"""Templates that write calls in a form that is no format, some with the markers of one."""
