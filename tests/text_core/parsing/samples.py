"""Answers as models write them in each format, and their parts as ``parsing.shown`` shows them."""

from __future__ import annotations

Shown = list[str | tuple[str, str]]

WHOLE: dict[str, list[tuple[str, Shown]]] = {
    "hermes": [
        ('<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>', [("f", '{"a": 1}')]),
        (
            'Both:\n<tool_call>{"name": "f", "arguments": {"a": "</tool_call>é"}}</tool_call>\n'
            '<tool_call>{"arguments": {}, "name": "g"}</tool_call>\nDone.',
            ["Both:", ("f", '{"a": "</tool_call>é"}'), ("g", "{}"), "Done."],
        ),
        ('<think>\nAm I?\n</think>\n\n<tool_call>{"name": "h"}</tool_call>', ["think: Am I?", ("h", "{}")]),
        ('<tool_call>{"name": "f", "arguments": {"a": "x\ny"}}</tool_call>', [("f", '{"a": "x\\ny"}')]),
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
        ('[f(a="\\u00e9\\x41\\t\\U0001f600\\/")]', [("f", '{"a": "\\u00e9\\u0041\\t\\ud83d\\ude00/"}')]),
    ],
    "mistral": [
        (
            'Now [TOOL_CALLS] [{"name": "f", "arguments": "{\\"a\\": 1}"}, {"name": "g"}]',
            ["Now", ("f", '{"a": 1}'), ("g", "{}")],
        ),
        ('[TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]g[CALL_ID]a1b2c3d4e[ARGS]{}', [("f", '{"a": 1}'), ("g", "{}")]),
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

MALFORMED: dict[str, list[tuple[str, Shown]]] = {
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
        ("[f(a=1, 2)] b", [("f", '{"a": 1, '), "2)] b"]),
        ("[f(a=1), g", [("f", '{"a": 1}'), ", g"]),
    ],
    "mistral": [("[TOOL_CALLS] none", ["[TOOL_CALLS] none"]), ("[TOOL_CALLS]f(1)", ["[TOOL_CALLS]f(1)"])],
    "deepseek": [("<｜tool▁call▁begin｜>f none", ["<｜tool▁call▁begin｜>f none"])],
    "harmony": [
        ("plain <|channel|>", ["plain <|channel|>"]),
        ("<|channel|>commentary to=functions.f<|message|>[1]<|call|>", [("f", ""), "[1]"]),
    ],
}
