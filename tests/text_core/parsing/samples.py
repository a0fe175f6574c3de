"""Answers as models write them in each format, and their parts as ``parsing.shown`` shows them."""

from __future__ import annotations

Shown = list[str | tuple[str, str]]

WHOLE: dict[str, list[tuple[str, Shown]]] = {
    "hy3": [
        (
            "So<tool_calls:opensource>\n<tool_call:opensource>f<tool_sep:opensource>\n<arg_key:opensource>a"
            "</arg_key:opensource>\n<arg_value:opensource>1</arg_value:opensource>\n</tool_call:opensource>\n"
            "<tool_call:opensource>g<tool_sep:opensource></tool_call:opensource></tool_calls:opensource>",
            ["So", ("f", '{"a": "1"}'), ("g", "{}")],
        ),
    ],
    "functionary": [
        ('So <function=f>{"a": "1"}</function><function=g>{}</function>', ["So", ("f", '{"a": "1"}'), ("g", "{}")]),
    ],
    "functionary_v32": [
        ('all\nSo\n>>>f\n{"a": ">>>g"}>>>g\n{"n": 1}', ["So", ("f", '{"a": ">>>g"}'), ("g", '{"n": 1}')]),
        ('f\n{"a": "1"}', [("f", '{"a": "1"}')]),
        ('>>>f\n{"a": "1"}\n>>>all\nThen', [("f", '{"a": "1"}'), "Then"]),
    ],
    "gigachat3_roles": [
        (
            'So<|message_sep|>\n\nfunction call<|role_sep|>\n{"name": "f", "arguments": {"a": "1"}}<|message_sep|>\n\n',
            ["So", ("f", '{"a": "1"}')],
        ),
        ('function call<|role_sep|>\n{"name": "g", "arguments": {}}', [("g", "{}")]),
    ],
    "gigachat3": [('So <|function_call|>{"name": "f", "arguments": {"a": "1"}}', ["So", ("f", '{"a": "1"}')])],
    "gemma4": [
        (
            'So<|tool_call>call:f{a:<|"|>x, "é" <|}\n<|"|>,n:5,b:true}<tool_call|><|tool_call>call:g{}<tool_call|>',
            ["So", ("f", '{"a": "x, \\"é\\" <|}\\n", "n": 5, "b": true}'), ("g", "{}")],
        ),
        (
            '<|tool_call>call:g{o:{<|"|>k<|"|>:[1,<|"|><|"|>, {}],l : None},m:12:30 h}<tool_call|>Then',
            [("g", '{"o": {"k": [1, "", {}], "l": null}, "m": "12:30 h"}'), "Then"],
        ),
        (r'<|tool_call>call:f{a:"C:\Users",n:5}<tool_call|>', [("f", r'{"a": "C:\\Users", "n": 5}')]),
        (
            '<|tool_call>call:f{"a": "x, n:5} {\\"\\n", \'k, \'  :[\'it\\\'s\', "<", "\\d", "" ],m:5"}<tool_call|>',
            [("f", '{"a": "x, n:5} {\\"\\n", "k, ": ["it\'s", "<", "\\\\d", ""], "m": "5\\""}')],
        ),
    ],
    "functiongemma": [
        (
            "So<start_function_call>call:f{a:<escape>x, <es\n<escape>,n:5}<end_function_call>",
            ["So", ("f", '{"a": "x, <es\\n", "n": 5}')],
        ),
    ],
    "kimi_k2": [
        (
            "So<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>"
            '{"a": "1"}<|tool_call_end|><|tool_call_begin|>g:12<|tool_call_argument_begin|>{}<|tool_call_end|>'
            "<|tool_calls_section_end|>",
            ["So", ("f", '{"a": "1"}'), ("g", "{}")],
        ),
        (
            '<|tool_call_begin|>functionsf5<|tool_call_argument_begin|>{"a": "1"}<|tool_call_end|>'
            "<|tool_call_begin|>functions_get_weather_3<|tool_call_argument_begin|>{}<|tool_call_end|>"
            "<|tool_call_begin|>functionsh5<|tool_call_argument_begin|>{}<|tool_call_end|>"
            "<|tool_call_begin|>functions.f5:1<|tool_call_argument_begin|>{}<|tool_call_end|>",
            [("f", '{"a": "1"}'), ("get_weather", "{}"), ("functionsh5", "{}"), ("f5", "{}")],
        ),
        (
            "<think>x</think><|tool_call_begin|> f <|tool_call_argument_begin|> {} <|tool_call_end|>",
            ["think: x", ("f", "{}")],
        ),
    ],
    "kimi_k3": [
        (
            'So<|open|>tools<|sep|><|open|>call tool="f" index="1"<|sep|><|open|>argument key="a" type="string"<|sep|>1'
            '<|close|>argument<|sep|><|open|>argument key="n" type="number"<|sep|>7<|close|>argument<|sep|>'
            '<|close|>call<|sep|><|open|>call tool="g" index="2"<|sep|><|close|>call<|sep|><|close|>tools<|sep|>',
            ["So", ("f", '{"a": "1", "n": 7}'), ("g", "{}")],
        ),
        (
            'So<|close|>response<|sep|><|open|>tools<|sep|><|open|>call tool="g" index="1"<|sep|><|close|>call<|sep|>'
            "<|close|>tools<|sep|>",
            ["So", ("g", "{}")],
        ),
    ],
    "cohere": [
        (
            'So<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "f", "parameters": {"a": "1"}},\n'
            '    {"tool_call_id": "1", "tool_name": "g", "parameters": {}}\n]<|END_ACTION|>',
            ["So", ("f", '{"a": "1"}'), ("g", "{}")],
        ),
    ],
    "lfm2": [
        (
            "So <|tool_call_start|>[f(a='1', n=2), g(m=None)]<|tool_call_end|>Then",
            ["So", ("f", '{"a": "1", "n": 2}'), ("g", '{"m": null}'), "Then"],
        ),
    ],
    "olmo3": [
        (
            "So\n<function_calls>\nf(a='1')\ng()\n</function_calls>",
            ["So", ("f", '{"a": "1"}'), ("g", "{}")],
        ),
    ],
    "apertus": [
        (
            'So <|tools_prefix|>[{"f": {"a": "1"}}, {"g": {}}]<|tools_suffix|>',
            ["So", ("f", '{"a": "1"}'), ("g", "{}")],
        ),
    ],
    "nemotron_json": [
        (
            '<think>\nx\n</think>\n\n<TOOLCALL>[{"name": "f", "arguments": {"a": "1"}}, {"name": "g"}]</TOOLCALL>',
            ["think: x", ("f", '{"a": "1"}'), ("g", "{}")],
        ),
    ],
    "hunyuan_a13b": [
        (
            'So\n<tool_calls>[{"name": "f", "arguments": {"a": "1"}, "id": "x"}]</tool_calls>',
            ["So", ("f", '{"a": "1"}')],
        ),
    ],
    "phi4_mini_json": [
        ('<|tool_call|>{"name": "f", "arguments": {"a": "1"}}<|/tool_call|>', [("f", '{"a": "1"}')]),
        ('So <|tool_call|>[{"name": "g", "arguments": {}}]<|/tool_call|>', ["So", ("g", "{}")]),
    ],
    "functools": [
        (
            'So functools[{"name": "f", "arguments": {"a": "1"}}, {"name": "g", "arguments": {}}]',
            ["So", ("f", '{"a": "1"}'), ("g", "{}")],
        ),
    ],
    "minimax_m1": [
        (
            'So\n<tool_calls>\n{"name": "f", "arguments": {"a": "1"}}\n{"name": "g", "arguments": {}}\n</tool_calls>',
            ["So", ("f", '{"a": "1"}'), ("g", "{}")],
        ),
    ],
    "xlam": [
        (
            '[{"name": "f", "arguments": {"a": "1"}}, {"name": "g", "arguments": {}}]',
            [("f", '{"a": "1"}'), ("g", "{}")],
        ),
    ],
    "internlm2": [
        (
            'So<|action_start|><|plugin|>\n{"name": "f", "parameters": {"a": "1"}}<|action_end|>'
            '<|action_start|><|plugin|>\n{"name": "g", "arguments": {}}<|action_end|>\n',
            ["So", ("f", '{"a": "1"}'), ("g", "{}")],
        ),
    ],
    "granite": [
        (
            '<|tool_call|>[{"name": "f", "arguments": {"a": "1"}}, {"name": "g", "arguments": {}}]',
            [("f", '{"a": "1"}'), ("g", "{}")],
        ),
    ],
    "qwen3_coder": [
        (
            "So:\n<tool_call>\n<function=f>\n<parameter=a>\n5\n\n</parameter>\n<parameter=n>\n 5 \n</parameter>\n"
            "<parameter=b>\nTrue\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=g>\n</function>\n"
            "</tool_call>",
            ["So:", ("f", '{"a": "5\\n", "n": 5, "b": true}'), ("g", "{}")],
        ),
        (
            "<think>\nx\n</think>\n\n<tool_call>\n<function=g>\n<parameter=o>\n{'k': [1, None]}\n</parameter>\n"
            '<parameter=m>\nnull\n</parameter>\n<parameter=n>\n5</x "é"\n</parameter>\n</function>\n</tool_call>',
            ["think: x", ("g", '{"o": {"k": [1, null]}, "m": null, "n": "5</x \\"é\\""}')],
        ),
        (
            "<tool_call><function=g><parameter=m>5</parameter><parameter=o>{} {}</parameter></function></tool_call> So",
            [("g", '{"m": "5", "o": "{} {}"}'), "So"],
        ),
        (
            "<tool_call>\n<function=f>\n<parameter=a>\n<a>\n</parameter>\nx</parameter> <b>\n</parameter>\n"
            "<parameter=n>\n5\n</parameter>\n</function>\n</tool_call>",
            [("f", '{"a": "<a>\\n</parameter>\\nx</parameter> <b>", "n": 5}')],
        ),
        (
            "<tool_call>\n<function=f>\n<parameter=a>\n3\n<parameter=x>\n<parameter=n>\n5\n<parameter=b>\ntrue\n</parameter>"
            "\n</function>\n</tool_call>",
            [("f", '{"a": "3\\n<parameter=x>", "n": 5, "b": true}')],
        ),
        (
            "<tool_call>\n<function=get_weather>\n<parameter=x>\n3\n<parameter=y>\n4\n</parameter>\n</function>\n</tool_call>",
            [("get_weather", '{"x": "3\\n<parameter=y>\\n4"}')],
        ),
        (
            "<tool_call>\n<function=f>\n<parameter=n>\n3\n</function>\n</tool_call>\n<tool_call>\n<function=f>\n<parameter=a>\n"
            "</function>\n4\n</function>\n</tool_call>\n",
            [("f", '{"n": 3}'), ("f", '{"a": "</function>\\n4"}')],
        ),
        (
            "So `<function=h>`:\n\n<function=f>\n<parameter=n>\n5\n</parameter>\n</function>\n</tool_call>\n"
            "<function=g>\n</function>",
            ["So `<function=h>`:", ("f", '{"n": 5}'), ("g", "{}")],
        ),
        (
            "<tool_call>\n<function=g>\n</function>\n<function=f>\n<parameter=n>\n5\n</parameter>\n</function>\n"
            "</tool_call>",
            [("g", "{}"), ("f", '{"n": 5}')],
        ),
        (
            "<tool_call><function=get_weather><parameter=x>5</parameter><parameter=y>five</parameter></function>",
            [("get_weather", '{"x": 5, "y": "five"}')],
        ),
    ],
    "glm45": [
        (
            "<think>x</think>\nSo\n<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>\n1\n</arg_value>\n"
            "<arg_key>n</arg_key>\n<arg_value>1</arg_value>\n</tool_call>\n<tool_call>g\n</tool_call>",
            ["think: x", "So", ("f", '{"a": "\\n1\\n", "n": 1}'), ("g", "{}")],
        ),
        (
            "<tool_call>f\n<arg_key>a</arg_key>\nhow many?</arg_value>\n<arg_key><arg_key>n</arg_key>5</arg_value>"
            "</tool_call><tool_call>g<arg_key>n</arg_key></arg_key>\n<arg_value> 5</arg_value>\n</tool_call>",
            [("f", '{"a": "how many?", "n": 5}'), ("g", '{"n": " 5"}')],
        ),
        (
            "<tool_call>f<arg_key>a</arg_key><arg_value>x </arg_value> </arg_key> y</arg_value> \n<arg_key>n</arg_key>"
            "<arg_value>5</arg_value></tool_call>",
            [("f", '{"a": "x </arg_value> </arg_key> y", "n": 5}')],
        ),
        (
            "<tool_call>g<arg_key>o</arg_key><arg_value>{}</arg_value><arg_key>m</arg_key><arg_value>[1]</arg_value>"
            "</tool_call>",
            [("g", '{"o": {}, "m": [1]}')],
        ),
    ],
    "deepseek_v32": [
        (
            'So\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name="f">\n<｜DSML｜parameter name="a" string="true">5'
            '</｜DSML｜parameter>\n<｜DSML｜parameter name="n" string="false">5</｜DSML｜parameter>\n'
            "</｜DSML｜invoke>\n"
            '<｜DSML｜invoke name="g">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>',
            ["So", ("f", '{"a": "5", "n": 5}'), ("g", "{}")],
        ),
        (
            'So\n\n<｜DSML｜invoke name="f">\n<｜DSML｜parameter name="a" string="true">5</｜DSML｜parameter>\n'
            '</｜DSML｜invoke>\n<｜DSML｜invoke name="g">\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>',
            ["So", ("f", '{"a": "5"}'), ("g", "{}")],
        ),
        (
            '<think>x</think><｜DSML｜tool_calls><｜DSML｜invoke name="g">'
            '<｜DSML｜parameter name="x" string="false">[{}]'
            "</｜DSML｜parameter></｜DSML｜invoke></｜DSML｜tool_calls>So",
            ["think: x", ("g", '{"x": [{}]}'), "So"],
        ),
    ],
    "minimax_m2": [
        (
            '<think>\nx\n</think>\n\nSo\n<minimax:tool_call>\n<invoke name="f">\n<parameter name="a">5</parameter>\n'
            '<parameter name="n">5</parameter>\n</invoke>\n<invoke name="g">\n<parameter name="n">5</parameter>\n'
            "</invoke>\n</minimax:tool_call>",
            ["think: x", "So", ("f", '{"a": "5", "n": 5}'), ("g", '{"n": "5"}')],
        ),
        ('So <invoke name="f"><parameter name="n">5</parameter></invoke>', ["So", ("f", '{"n": 5}')]),
        ('<minimax:tool_call><invoke name="g"></invoke></minimax:tool_call>', [("g", "{}")]),
    ],
    "minimax_m3": [
        (
            '<think>x</think>So]<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="f">]<]minimax[>[<a>5'
            "]<]minimax[>[</a>]<]minimax[>[<n>5]<]minimax[>[</n>]<]minimax[>[<b>true]<]minimax[>[</b>]<]minimax[>[</invoke>\n"
            ']<]minimax[>[<invoke name="g">]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>',
            ["think: x", "So", ("f", '{"a": "5", "n": 5, "b": true}'), ("g", "{}")],
        ),
        (
            ']<]minimax[>[<tool_call>]<]minimax[>[<invoke name="get_weather">]<]minimax[>[<x>\n]<]minimax[>[<item>'
            "]<]minimax[>[<k>1 < 2]<]minimax[>[</k>\n]<]minimax[>[<l>]<]minimax[>[</l>]<]minimax[>[</item>"
            "]<]minimax[>[<item>7]<]minimax[>[</item>\n]<]minimax[>[</x>]<]minimax[>[<y>]<]minimax[>[<item>é"
            "]<]minimax[>[</item>]<]minimax[>[</y>]<]minimax[>[</invoke>]<]minimax[>[</tool_call>Then",
            [("get_weather", '{"x": [{"k": "1 < 2", "l": ""}, 7], "y": ["é"]}'), "Then"],
        ),
        (
            ']<]minimax[>[<tool_call>]<]minimax[>[<invoke name="g">]<]minimax[>[<o>]<]minimax[>[<item>5'
            "]<]minimax[>[</item>]<]minimax[>[</o>]<]minimax[>[<m>]<]minimax[>[<item>5]<]minimax[>[</item>]<]minimax[>[</m>"
            "]<]minimax[>[<o>]<]minimax[>[</o>]<]minimax[>[<m>]<]minimax[>[</m>]<]minimax[>[</invoke>",
            [("g", '{"o": {"item": 5}, "m": [5], "o": {}, "m": ""}')],
        ),
    ],
    "seed_oss": [
        (
            "<seed:tool_call>\n<function=f>\n<parameter=a>x\ny\n<parameter=n>7</parameter>\n</function>\n</seed:tool_call>",
            [("f", '{"a": "x\\ny", "n": 7}')],
        ),
        (
            "So\n<seed:tool_call>\n<function=f>\n<parameter=a>x\ny</parameter>\n<parameter=n>7</parameter>\n"
            "<parameter=b>False</parameter>\n</function>\n</seed:tool_call>",
            ["So", ("f", '{"a": "x\\ny", "n": 7, "b": false}')],
        ),
    ],
    "minicpm5": [
        (
            'So\n<function name="f"><param name="a"><![CDATA[<b> & ]] \n]]></param><param name="n">7</param>'
            '<param name="b">False</param></function>\n<function name="g"></function>',
            ["So", ("f", '{"a": "<b> & ]] \\n", "n": 7, "b": false}'), ("g", "{}")],
        ),
        (
            '<function name="g"><param name="o"><![CDATA[{"k": "<"}]]></param><param name="n"> 5 </param></function>',
            [("g", '{"o": {"k": "<"}, "n": " 5 "}')],
        ),
    ],
    "solar_open": [
        (
            "So<|end|><|begin|>assistant<|tool_calls|><|tool_call:begin|>a1b2c3d4e5<|tool_call:name|>f<|tool_call:args|>"
            '{"a": "1"}<|tool_call:end|><|tool_call:begin|>a1b2c3d4e6<|tool_call:name|>g<|tool_call:args|>{}'
            "<|tool_call:end|><|calls|>",
            ["So", ("f", '{"a": "1"}'), ("g", "{}")],
        ),
        (
            "<think>x</think><|tool_calls|> <|tool_call:begin|><|tool_call:name|>g<|tool_call:args|> {}"
            "<|tool_call:end|>",
            ["think: x", ("g", "{}")],
        ),
    ],
    "hermes": [
        ('<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>', [("f", '{"a": 1}')]),
        (
            'Both:\n<tool_call>{"name": "f", "arguments": {"a": "</tool_call>é"}}</tool_call>\n'
            '<tool_call>{"arguments": {}, "name": "g"}</tool_call>\nDone.',
            ["Both:", ("f", '{"a": "</tool_call>é"}'), ("g", "{}"), "Done."],
        ),
        ('<think>\nAm I?\n</think>\n\n<tool_call>{"name": "h"}</tool_call>', ["think: Am I?", ("h", "{}")]),
        ('<tool_call>{"name": "f", "arguments": {"a": "x\ny"}}</tool_call>', [("f", '{"a": "x\\ny"}')]),
        (
            r'<tool_call>{"name": "f", "arguments": {"a": "C:\Users\x \u6水 \u00e9"}}</tool_call>',
            [("f", r'{"a": "C:\\Users\\x \\u6水 \u00e9"}')],
        ),
        (
            r'<tool_call>{"name": "f", "arguments": "{\"a\": \"C:\Users\"}"}</tool_call>',
            [("f", r'{"a": "C:\\Users"}')],
        ),
        ("<think></think>1 < 2", ["1 < 2"]),
        (
            '<tool_call>{"name": "f", "arguments": "{\\"a\\": \\"\\\\\\"\\n\\ud83d\\ude00\\"}"}</tool_call>'
            '<tool_call>{"arguments": " {\\"b\\": {}} ", "name": "g"}</tool_call>',
            [("f", '{"a": "\\"\\n\U0001f600"}'), ("g", '{"b": {}}')],
        ),
        (
            '<tool_call>{"name": "f", "arguments": ""}</tool_call>'
            '<tool_call>{"name": "g", "arguments": null}</tool_call>',
            [("f", "{}"), ("g", "{}")],
        ),
    ],
    "llama3_json": [
        ('{"name": "f", "parameters": {"a": [1, 2.5e3]}}', [("f", '{"a": [1, 2.5e3]}')]),
        ('{"name": "f", "parameters": {}}; {"name": "g", "parameters": "{}"}', [("f", "{}"), ("g", "{}")]),
        ('Now <|python_tag|>{"name": "h", "parameters": {}}', ["Now", ("h", "{}")]),
    ],
    "pythonic": [
        ("[f(a=1, b='x\"', c=[True, None]), g()]", [("f", '{"a": 1, "b": "x\\"", "c": [true, null]}'), ("g", "{}")]),
        ('Now <|python_start|>[h(a={"k": (-1, 2)})]<|python_end|>', ["Now", ("h", '{"a": {"k": [-1, 2]}}')]),
        ("[f(-A=1, $top = 2, größe=[], a b='x')]", [("f", '{"-A": 1, "$top": 2, "größe": [], "a b": "x"}')]),
        (r'[f(a="C:\Users\new \x4 \UFFFFFFFF")]', [("f", r'{"a": "C:\\Users\new \\x4 \\UFFFFFFFF"}')]),
        ('[f(a="x\\U01001f60")]', [("f", '{"a": "x\\\\U01001f60"}')]),
        ('[f(a="\\u00e9\\x41\\t\\U0001f600\\/")]', [("f", '{"a": "\\u00e9\\u0041\\t\\ud83d\\ude00/"}')]),
    ],
    "mistral": [
        (
            'Now [TOOL_CALLS] [{"name": "f", "arguments": "{\\"a\\": 1}"}, {"name": "g"}]',
            ["Now", ("f", '{"a": 1}'), ("g", "{}")],
        ),
        (
            '[TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]g[CALL_ID]a1b2c3d4e[ARGS]{"n": 1}',
            [("f", '{"a": 1}'), ("g", '{"n": 1}')],
        ),
    ],
    "deepseek": [
        (
            "Now<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n"
            '{"a": 1}\n```<｜tool▁call▁end｜>\n'
            "<｜tool▁call▁begin｜>function<｜tool▁sep｜>g\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
            ["Now", ("f", '{"a": 1}'), ("g", "{}")],
        ),
        (
            '<think>x</think><｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{"a": 1}<｜tool▁call▁end｜>'
            "<｜tool▁call▁begin｜>g<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
            ["think: x", ("f", '{"a": 1}'), ("g", "{}")],
        ),
    ],
    "harmony": [
        (
            "<|channel|>analysis<|message|>Is 1<2?<|end|><|start|>assistant<|channel|>final<|message|>Yes.<|return|>",
            ["think: Is 1<2?", "Yes."],
        ),
        (
            "<|channel|>analysis<|message|>x<|end|><|start|>assistant<|channel|>commentary<|message|>Now.<|end|>"
            '<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}<|call|>',
            ["think: x", "Now.", ("f", '{"a": 1}')],
        ),
        (' to=functions.f<|channel|>commentary json<|message|>{"a": 1}<|call|>', [("f", '{"a": 1}')]),
    ],
}

EMPTY: dict[str, list[tuple[str, Shown]]] = {
    "functionary": [
        ("<function=f>\n</function> So", [("f", "{}"), "So"]),
    ],
    "functionary_v32": [
        (">>>f\n>>>g\n", [("f", "{}"), ("g", "{}")]),
    ],
    "kimi_k2": [
        (
            "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|><|tool_call_end|>"
            "<|tool_call_begin|>functions.g:1<|tool_call_argument_begin|> <|tool_call_end|><|tool_calls_section_end|>",
            [("f", "{}"), ("g", "{}")],
        ),
    ],
    "solar_open": [
        (
            "<|tool_calls|><|tool_call:begin|>a1b2c3d4e5<|tool_call:name|>f<|tool_call:args|><|tool_call:end|><|calls|>",
            [("f", "{}")],
        ),
    ],
    "mistral": [
        ("[TOOL_CALLS]f[ARGS][TOOL_CALLS]g[ARGS]", [("f", "{}"), ("g", "{}")]),
    ],
    "deepseek": [
        (
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜><｜tool▁call▁end｜>"
            "<｜tool▁call▁begin｜>function<｜tool▁sep｜>g\n```json\n```<｜tool▁call▁end｜>"
            "<｜tool▁call▁begin｜>function<｜tool▁sep｜>h<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
            [("f", "{}"), ("g", "{}"), ("h", "{}")],
        ),
    ],
    "harmony": [
        ("<|channel|>commentary to=functions.f <|constrain|>json<|message|><|call|>", [("f", "{}")]),
        (
            "<|channel|>commentary to=functions.f<|message|> <|start|>assistant<|channel|>final<|message|>So",
            [("f", "{}"), "So"],
        ),
    ],
}
"""Calls with nothing where their arguments would be."""

MALFORMED: dict[str, list[tuple[str, Shown]]] = {
    "hy3": [("<tool_calls:opensource>none", ["<tool_calls:opensource>none"])],
    "functionary": [("<function=f>none", ["<function=f>none"]), ("<function=f {}", ["<function=f {}"])],
    "functionary_v32": [
        ("all the best", ["all the best"]),
        ("f\nnone", ["f\nnone"]),
        ('h\n{"a": 1}', ['h\n{"a": 1}']),
        ("Try >>> f\n{}", ["Try >>> f\n{}"]),
        ('g\n{"a": 1', [("g", '{"a": 1')]),
    ],
    "gigachat3_roles": [
        ("A function call", ["A function call"]),
        ("function call<|role_sep|>\nx", ["function call<|role_sep|>\nx"]),
    ],
    "gigachat3": [("<|function_call|>none", ["<|function_call|>none"])],
    "gemma4": [
        ("<|tool_call>call f", ["<|tool_call>call f"]),
        ("<|tool_call>call:f{a:<|x", [("f", '{"a": "<|'), "x"]),
        ("<|tool_call>call:f{a}", [("f", '{"a"'), "}"]),
        ('<|tool_call>call:f{a:<|"|>x', [("f", '{"a": "x')]),
        ("<|tool_call>call:f{a:1,n:2", [("f", '{"a": 1, "n": ')]),
        ('<|tool_call>call:f{a:"x" y}', [("f", '{"a": "x"'), "y}"]),
    ],
    "functiongemma": [("<start_function_call>call f", ["<start_function_call>call f"])],
    "kimi_k2": [
        ("<|tool_call_begin|>f none", ["<|tool_call_begin|>f none"]),
        ("<|tool_calls_section_begin|>none", ["<|tool_calls_section_begin|>none"]),
        ("<|tool_call_begin|>f<|tool_call_argument_begin|>1", ["<|tool_call_begin|>f<|tool_call_argument_begin|>1"]),
    ],
    "kimi_k3": [
        ("<|open|>tools<|sep|>none", ["<|open|>tools<|sep|>none"]),
        ('<|open|>tools<|sep|><|open|>call tool="f" id="1"', ['<|open|>tools<|sep|><|open|>call tool="f" id="1"']),
        (
            '<|open|>tools<|sep|><|open|>call tool="f" index="1"<|sep|><|open|>argument key="a" type="date"<|sep|>1',
            [("f", "{"), '<|open|>argument key="a" type="date"<|sep|>1'],
        ),
    ],
    "cohere": [
        ('<|START_ACTION|>[{"name": "f"}]', ['<|START_ACTION|>[{"name": "f"}]']),
        ('<|START_ACTION|>[{"tool_name": "f"} x', [("f", "{}"), "x"]),
    ],
    "lfm2": [
        ("[f(a=1)]", ["[f(a=1)]"]),
        ("<|tool_call_start|>[f(a=1)", [("f", '{"a": 1}')]),
        ("<|tool_call_start|>f()", ["<|tool_call_start|>f()"]),
    ],
    "olmo3": [
        ("<function_calls>\n1", ["<function_calls>\n1"]),
        ("<function_calls>f() g(x)", [("f", "{}"), ("g", '{"x'), ")"]),
    ],
    "apertus": [
        ('<|tools_prefix|>[{"f": 1}]', ['<|tools_prefix|>[{"f": 1}]']),
        ('<|tools_prefix|>[{"f": {}, "g": {}}]', [("f", "{}"), ', "g": {}}]']),
    ],
    "nemotron_json": [("<TOOLCALL>none", ["<TOOLCALL>none"])],
    "hunyuan_a13b": [("<tool_calls>none", ["<tool_calls>none"])],
    "phi4_mini_json": [("<|tool_call|>none", ["<|tool_call|>none"])],
    "functools": [
        ("functools and [more]", ["functools and [more]"]),
        ('functools[{"name": "f"}, none]', [("f", "{}"), ", none]"]),
    ],
    "minimax_m1": [
        ('<tool_calls>[{"name": "f"}]</tool_calls>', ['<tool_calls>[{"name": "f"}]</tool_calls>']),
        ('<tool_calls>{"name": "f"}\n{none}', [("f", "{}"), "\n{none}"]),
    ],
    "xlam": [
        ('[{"name": "other", "arguments": {}}]', ['[{"name": "other", "arguments": {}}]']),
        ('So [{"name": "f"}]', ['So [{"name": "f"}]']),
        ('[{"name": "f"}] [{"name": "g"}]', [("f", "{}"), '[{"name": "g"}]']),
    ],
    "internlm2": [("<|action_start|><|interpreter|>1", ["<|action_start|><|interpreter|>1"])],
    "granite": [("<|tool_call|>[none", ["<|tool_call|>[none"])],
    "qwen3_coder": [
        ("It is <tool_call>.", ["It is <tool_call>."]),
        ("<tool_call>\n<function=f x>", ["<tool_call>\n<function=f x>"]),
        (
            "<function=h>\n<parameter=n>\n5\n</parameter>\n</function>\n</tool_call>",
            ["<function=h>\n<parameter=n>\n5\n</parameter>\n</function>\n</tool_call>"],
        ),
        ("It is <function=f>\n.", ["It is <function=f>\n."]),
        ("It is <function=f> ", ["It is <function=f> "]),
        ("<tool_call><function=f><parameter=n>5</parameter> x", [("f", '{"n": 5'), " x"]),
        (
            "<tool_call><function=f><parameter=a>5</parameter>\n<tool_call><function=g></function></tool_call>",
            [("f", '{"a": "5"'), "\n", ("g", "{}")],
        ),
        ("<tool_call><function=g><parameter=m>5</parameter> x", [("g", '{"m": '), "5</parameter> x"]),
        (
            "<tool_call>\n<function=f>\n<parameter=a>\nx\n</parameter>" + " " * 600 + "y",
            [("f", '{"a": "x"'), " " * 600 + "y"],
        ),
        ("<tool_call>\n<function=f> and", [("f", "{"), " and"]),
        ("<tool_call><function=f><parameter=a>x</param", [("f", '{"a": "x</param')]),
        ("<tool_call><function=f><parameter=n>12", [("f", '{"n": ')]),
        ("<tool_call><function=f><parameter>x", [("f", "{"), "<parameter>x"]),
        ("<tool_call><function=f></func", [("f", "{")]),
        ("<tool_call><function=f></tool_call>", [("f", "{}")]),
        ('<tool_call>\n{"name": "f"}</tool_call>', ['<tool_call>\n{"name": "f"}</tool_call>']),
    ],
    "glm45": [
        ("<tool_call> f g</tool_call>", ["<tool_call> f g</tool_call>"]),
        ("<tool_call>f<arg_key>a</arg_key>1", [("f", '{"a": "1')]),
        ("<tool_call>f<arg_key>n</arg_key>1</tool_call>x", [("f", '{"n": '), "1</tool_call>x"]),
        (
            "<tool_call>f<arg_key>a</arg_key>1<arg_key>n</arg_key><arg_value>1</arg_value></tool_call>"
            "<tool_call>g</tool_call>",
            [("f", '{"a": "1'), "<arg_key>n</arg_key><arg_value>1</arg_value></tool_call>", ("g", "{}")],
        ),
        ("<tool_call>f<arg_key>a</arg_key></tool_call>", [("f", "{"), "<arg_key>a</arg_key></tool_call>"]),
        ("<tool_call>f<arg_key>a</arg_key></tool", [("f", "{"), "<arg_key>a</arg_key></tool"]),
        (
            "<tool_call>f<arg_key>a</arg_key><arg_value>x</arg_value> y</tool_call>",
            [("f", '{"a": "x</arg_value> y</tool_call>')],
        ),
        ("<tool_call>f", ["<tool_call>f"]),
    ],
    "deepseek_v32": [
        ("See <｜DSML｜ x", ["See <｜DSML｜ x"]),
        (
            '<｜DSML｜function_calls><｜DSML｜invoke name="f"><｜DSML｜parameter name="days" string="false',
            [("f", "{")],
        ),
        ('<｜DSML｜function_calls><｜DSML｜invoke name="f"><｜DSML｜parameter name="days" st', [("f", "{")]),
        (
            '<｜DSML｜function_calls><｜DSML｜invoke name="f"></｜DSML｜invoke><｜DSML｜invoke name="g"> x',
            [("f", "{}"), ("g", "{"), " x"],
        ),
    ],
    "minimax_m2": [("<minimax:tool_call>none", ["<minimax:tool_call>none"])],
    "minimax_m3": [
        ("]<]minimax[>[<tool_call>none", ["]<]minimax[>[<tool_call>none"]),
        ("a ]<]minimax[>[ b", ["a ]<]minimax[>[ b"]),
        (
            ']<]minimax[>[<tool_call>]<]minimax[>[<invoke name="f">]<]minimax[>[<n>]<]minimax[>[<k>1'
            "]<]minimax[>[</k> x",
            [("f", '{"n": {"k": "1"'), " x"],
        ),
        (
            ']<]minimax[>[<tool_call>]<]minimax[>[<invoke name="f">]<]minimax[>[<a>x]<]minimax[>[<k>1',
            [("f", '{"a": "x'), "]<]minimax[>[<k>1"],
        ),
        (']<]minimax[>[<tool_call>]<]minimax[>[<invoke name="f">]<]minimax[>[</a>', [("f", "{"), "]<]minimax[>[</a>"]),
    ],
    "seed_oss": [("<seed:tool_call>none", ["<seed:tool_call>none"])],
    "minicpm5": [
        ('<function name="f" none', ['<function name="f" none']),
        ('<function name="f"><param name="a"><![CDATA[x</param></function>', [("f", '{"a": "x</param></function>')]),
    ],
    "solar_open": [
        ("<|tool_calls|>none", ["<|tool_calls|>none"]),
        ("<|tool_call:begin|>x<|tool_call:name|>f none", ["<|tool_call:begin|>x<|tool_call:name|>f none"]),
        ("a<|end|><|begin|>assistant b", ["a<|end|><|begin|>assistant b"]),
    ],
    "hermes": [
        ("It is spelled <tool_call>.", ["It is spelled <tool_call>."]),
        ('<tool_call>{"name": 5}</tool_call>', ['<tool_call>{"name": 5}</tool_call>']),
        ('<tool_call>{"arguments": {}}</tool_call>', ['<tool_call>{"arguments": {}}</tool_call>']),
        ('a <tool_call> <tool_call>{"name": "f"}', ["a <tool_call> ", ("f", "{}")]),
        ('<tool_call>{"name": "f", "arguments": [1]} b', [("f", ""), ', "arguments": [1]} b']),
        ('<tool_call>{"name": "f", "arguments": {"a": tru} b', [("f", '{"a": tru'), "} b"]),
        ('<tool_call>{"name": "f", "arguments": "[1]"}', [("f", ""), ', "arguments": "[1]"}']),
        ('<tool_call>{"name": "f", "arguments": "{} {}"}', [("f", ""), ', "arguments": "{} {}"}']),
        ('<tool_call>{"name": "f", "arguments": "{\\"a\\": \\"b\\ud83d\\ude', [("f", '{"a": "b')]),
        ('<tool_call>{"name": "f", "arguments": "', [("f", "")]),
        ('<tool_call>{"name": "f", "arguments": "\\ud800"}', [("f", ""), ', "arguments": "\\ud800"}']),
        (r'<tool_call>{"name": "f", "arguments": {"a": "\u00', [("f", r'{"a": "\u00')]),
        ('<tool_call>{"name": "f", "argum', [("f", "")]),
        ('<tool_call>{"name": "f"} <tool_call>{"na', [("f", "{}"), '<tool_call>{"na']),
        ("x <tool_c", ["x <tool_c"]),
        ("<think>no end\n", ["think: no end\n"]),
        ("What is <think>?</think>", ["What is <think>?</think>"]),
    ],
    "llama3_json": [
        ('{"name": "Bob", "parameters": {}}', ['{"name": "Bob", "parameters": {}}']),
        ('See {"name": "f", "parameters": {}}', ['See {"name": "f", "parameters": {}}']),
        ('{"name": "f", "parameters": {}}; and', [("f", "{}"), "; and"]),
    ],
    "pythonic": [
        ("[1, 2]", ["[1, 2]"]),
        ("[h(a=1)]", ["[h(a=1)]"]),
        ("[f(a=1, b)] c", [("f", '{"a": 1, "b'), ")] c"]),
        ("[f(a=1, 2)] b", [("f", '{"a": 1, '), "2)] b"]),
        ("[f(a=1, b )] b", [("f", '{"a": 1, "b '), ")] b"]),
        ("[f(a=1, -b", [("f", '{"a": 1, "-b')]),
        ("[f(a=1), g", [("f", '{"a": 1}'), ", g"]),
    ],
    "mistral": [
        ("[TOOL_CALLS] none", ["[TOOL_CALLS] none"]),
        ("[TOOL_CALLS]f(1)", ["[TOOL_CALLS]f(1)"]),
        ("[TOOL_CALLS]f", ["[TOOL_CALLS]f"]),
        ("[TOOL_CALLS]f[ARGS] none", ["[TOOL_CALLS]f[ARGS] none"]),
    ],
    "deepseek": [
        ("<｜tool▁call▁begin｜>f none", ["<｜tool▁call▁begin｜>f none"]),
        (
            "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```\n{}\n```",
            ["<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```\n{}\n```"],
        ),
        ("<｜tool▁call▁begin｜>f<｜tool▁sep｜>", ["<｜tool▁call▁begin｜>f<｜tool▁sep｜>"]),
    ],
    "harmony": [
        ("plain <|channel|>", ["plain <|channel|>"]),
        ("<|channel|>commentary to=functions.f<|message|>[1]<|call|>", [("f", ""), "[1]"]),
    ],
}
