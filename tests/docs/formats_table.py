"""The tables of formats in docs/reference/tools-and-reasoning.md: who writes calls and reasoning, and how.

``python -m tests.docs.formats_table`` writes them into the page.
"""

from __future__ import annotations

import re
import sys
from typing import Any

from tests.docs.documents import ROOT, Generated
from tests.text_core.parsing.call_templates import CALL_TEMPLATES
from text_core.chat_templates import ChatTemplates, TemplateSource
from text_core.parsing.formats import REASONING_FORMATS, TOOL_FORMATS

PAGE = ROOT / "docs" / "reference" / "tools-and-reasoning.md"
_BEGIN = "<!-- By `python -m tests.docs.formats_table`, which a test runs. -->\n"
_END = "<!-- End of the tables. -->"
_CALL = {"type": "function", "id": "call00001", "function": {"name": "f", "arguments": {"a": "x", "b": 1}}}
_CHAT: list[dict[str, Any]] = [{"role": "assistant", "content": "", "tool_calls": [_CALL]}]
CALLS = {
    "harmony": "gpt-oss",
    "qwen3_coder": "Qwen3-Coder, Qwen3.5, Step 3.5, Nemotron 3",
    "glm45": "GLM 4.5 to 4.7, Laguna",
    "hy3": "Hunyuan 3",
    "deepseek_v32": "DeepSeek V3.2, V4",
    "gemma4": "Gemma 4",
    "functiongemma": "FunctionGemma",
    "minimax_m2": "MiniMax-M2",
    "minimax_m3": "MiniMax-M3",
    "seed_oss": "Seed-OSS",
    "minicpm5": "MiniCPM5",
    "kimi_k2": "Kimi K2",
    "kimi_k3": "Kimi K3",
    "solar_open": "Solar Open",
    "deepseek": "DeepSeek V3, R1, V3.1",
    "cohere": "Command R7B, Command A",
    "lfm2": "LFM2, LFM2.5",
    "olmo3": "OLMo 3",
    "apertus": "Apertus",
    "nemotron_json": "Nemotron Nano 2, Llama-Nemotron 1.5",
    "minimax_m1": "MiniMax-M1",
    "hunyuan_a13b": "Hunyuan A13B, Apriel",
    "phi4_mini_json": "Phi-4-mini",
    "internlm2": "InternLM 2, 2.5",
    "granite": "Granite 3",
    "functools": "Firefunction v2, Phi-4-mini with vLLM's template",
    "gigachat3": "GigaChat 3.1",
    "gigachat3_roles": "GigaChat 3",
    "functionary": "Functionary 3.1",
    "functionary_v32": "Functionary 3.2",
    "mistral": "Mistral, Mixtral, Ministral, Devstral",
    "hermes": "Qwen, Hermes, Granite 4, most others, the bundled model",
    "pythonic": "Llama 4",
    "xlam": "xLAM 2",
    "llama3_json": "Llama 3.1 to 3.3",
}
"""Who writes calls in each format."""
REASONING = {
    "harmony": "gpt-oss",
    "mistral": "Magistral, Ministral 3",
    "gemma4": "Gemma 4",
    "cohere": "Command A Reasoning, Command R7B",
    "seed_oss": "Seed-OSS",
    "minimax_m3": "MiniMax-M3",
    "apertus": "Apertus",
    "hy3": "Hunyuan 3",
    "kimi_vl": "Kimi-VL",
    "kimi_k3": "Kimi K3",
    "apriel": "Apriel 1.5, 1.6",
    "solar_open": "Solar Open",
    "think": "Qwen, DeepSeek, GLM, Kimi K2, MiniMax-M2 and most others",
}
"""Who writes reasoning in each format."""


def tables() -> str:
    """Of calls, then of reasoning."""
    calls = ["| `tool_calls` | written by | form |", "| --- | --- | --- |"]
    calls += [f"| `{name}` | {CALLS[name]} | {_code(_call(name))} |" for name in TOOL_FORMATS]
    reasoning = ["| `reasoning` | written by | form |", "| --- | --- | --- |"]
    for name, form in REASONING_FORMATS.items():
        shown = f"{form.opening}…{form.closing}"
        reasoning.append(f"| `{name}` | {REASONING[name]} | {_code(shown)} |")
    return "\n".join([*calls, "", *reasoning]) + "\n"


def _call(name: str) -> str:
    """A call of f in the format."""
    rendered = ChatTemplates({"default": TemplateSource(CALL_TEMPLATES[name])}).render(_CHAT)
    return rendered.removeprefix("<|assistant|>").removesuffix("<|assistant|>")


def _code(text: str) -> str:
    escaped = re.sub(r"\n+", " ", text.strip()).replace("|", "\\|")
    return f"`{escaped}`"


TABLE = Generated(PAGE, _BEGIN, _END, tables)

if __name__ == "__main__":
    sys.exit(TABLE.write())
