"""Parts beside what transformers parses, by its own template for Qwen, and by templates for other formats."""

from __future__ import annotations

import ast
import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from transformers.utils.chat_parsing import parse_response

from tests.text_core.parsing.parsing import options_of, parse
from tests.text_core.parsing.samples import WHOLE
from text_core.parsing.parts import Content, Part, Reasoning, ToolCallPiece

_CALL = {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}}


def qwens_template() -> dict[str, Any]:
    """The template that transformers' server uses for Qwen; read, because to import it takes seconds."""
    spec = find_spec("transformers")
    assert spec is not None
    assert spec.origin is not None
    tree = ast.parse((Path(spec.origin).parent / "cli/serving/utils.py").read_text())
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_RESPONSE_TEMPLATE_FALLBACKS":
            return next(template for models, template in ast.literal_eval(node.value).items() if "qwen3" in models)
    raise AssertionError("transformers has no template for Qwen")


def template(calls: dict[str, Any], reasoning: tuple[str, str], **content: Any) -> dict[str, Any]:
    opening, closing = reasoning
    fields = {
        "reasoning_content": {"open": opening, "close": closing},
        "tool_calls": {"repeats": True, "content": "json", "transform": _CALL} | calls,
        "content": content,
    }
    return {"start_anchor": "<start>", "fields": fields}


TEMPLATES = {
    "hermes": qwens_template() | {"start_anchor": "<start>"},
    "mistral": template(
        {"open_pattern": r"\s*\[TOOL_CALLS\](?P<name>\w+)(?:\[CALL_ID\]\w+)?\[ARGS\]", "close_pattern": r"(?=\[)|$"},
        ("<think>", "</think>"),
    ),
    "deepseek": template(
        {
            "open_pattern": r"(?:\s*<｜tool▁calls▁begin｜>)?\s*<｜tool▁call▁begin｜>"
            r"(?:function<｜tool▁sep｜>)?(?P<name>\w+)(?:<｜tool▁sep｜>|\n```json\n)",
            "close_pattern": r"(?:\n```)?<｜tool▁call▁end｜>(?:<｜tool▁calls▁end｜>)?",
        },
        ("<think>", "</think>"),
    ),
    "harmony": template(
        {
            "open_pattern": r"(?:<\|start\|>assistant)?(?:<\|channel\|>commentary)? to=functions\.(?P<name>\w+)"
            r"(?:<\|channel\|>commentary)?(?: <\|constrain\|>| )json<\|message\|>",
            "close": "<|call|>",
        },
        ("<|channel|>analysis<|message|>", "<|end|>"),
        open_pattern=r"(?:<\|start\|>assistant)?<\|channel\|>(?:final|commentary)<\|message\|>",
        close=["<|end|>", "<|return|>"],
    ),
}


def as_transformers_does(parts: list[Part]) -> dict[str, Any]:
    """The parts in the form of its message: stripped texts, and arguments that are parsed."""
    calls = [part for part in parts if isinstance(part, ToolCallPiece)]
    message = {
        "content": next((part.text.strip() for part in parts if isinstance(part, Content)), ""),
        "reasoning_content": next((part.text.strip() for part in parts if isinstance(part, Reasoning)), ""),
        "tool_calls": [
            {"type": "function", "function": {"name": call.name, "arguments": json.loads(call.arguments)}}
            for call in calls
        ],
    }
    return {name: value for name, value in message.items() if value}


TEXTS = {
    "hermes": [
        '<think>\nWeather.\n</think>\n\nLet me see.\n\n<tool_call>\n{"name": "f", "arguments": {"a": [1, {"b": null}]}}'
        '\n</tool_call>\n<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"a": "x\\ny é"}}</tool_call>',
        "<think>\nA <b> tag.\n</think>\n\nUse `<b>`, é.",
        "Only text, with { and </.",
    ],
    "mistral": [text for text, _ in WHOLE["mistral"][1:]],
    "deepseek": [text for text, _ in WHOLE["deepseek"]],
    "harmony": [text for text, _ in WHOLE["harmony"]],
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_parts_are_those_of_transformers(name: str) -> None:
    for text in TEXTS[name]:
        theirs = parse_response(text, TEMPLATES[name], prefix="<start>")
        said = {field: value for field, value in theirs.items() if value and field != "role"}
        assert said
        assert as_transformers_does(parse(text, options_of(name))[-1]) == said, text
