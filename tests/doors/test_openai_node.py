"""The openai package of Node."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ringline import Client, Generation

from tests.clients.node_programs import NODE_CLIENT
from tests.docs.documents import Block, blocks
from tests.doors.clients import ASKED, Shown, run_node
from tests.doors.door import Door
from tests.doors.environments import NODE, of_node
from tests.programs import output_of

pytestmark = pytest.mark.doors


@pytest.fixture(scope="module")
def program(door: Door) -> Shown:
    return run_node("openai", "openai", door.api, door.engine_metrics)


def test_chat(shown: Shown, answer: Generation) -> None:
    (choice,) = shown("chat")["choices"]
    assert choice["message"]["content"] == answer.content
    assert choice["finish_reason"] == answer.finish_reason


def test_chat_stream(shown: Shown, answer: Generation) -> None:
    *chunks, last = shown("chat_stream")
    assert "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks) == answer.content
    assert last["usage"]["completion_tokens"] == answer.usage.completion_tokens


def test_chat_stream_helper(shown: Shown, answer: Generation) -> None:
    assert shown("chat_stream_helper") == {"content": answer.content, "final": answer.content}


def test_tools_round_trip(shown: Shown, native: Client) -> None:
    trip = shown("tools_round_trip")
    asked = {"temperature": 0.0, "max_tokens": ASKED["max_tokens"], "tools": [ASKED["tool"]]}
    first = native.generate(messages=ASKED["messages"], tool_choice="required", **asked)
    assert trip["finish_reason"] == "tool_calls"
    assert trip["function"] == {"name": "add", "arguments": first.tool_calls[0].arguments}
    result = {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": "7"}
    second = native.generate(messages=[*ASKED["messages"], first.choices[0].message(), result], **asked)
    assert trip["second"] == second.content


def test_json_schema(shown: Shown) -> None:
    fruit = shown("json_schema")
    assert json.loads(fruit["text"]) == fruit["parsed"]


def test_completions(shown: Shown, native: Client) -> None:
    (choice,) = shown("completions")["choices"]
    assert choice["text"] == native.generate(ASKED["prompt"], temperature=0.0, max_tokens=12).text


def test_responses(shown: Shown, answer: Generation) -> None:
    response = shown("responses")
    assert response["text"] == response["streamed"] == answer.content
    assert response["usage"]["output_tokens"] == answer.usage.completion_tokens


def test_errors(shown: Shown) -> None:
    errors = {name: (error["kind"], error["status"], error["param"]) for name, error in shown("errors").items()}
    assert errors == {
        "temperature": ("BadRequestError", 400, "temperature"),
        "model": ("NotFoundError", 404, "model"),
        "messages": ("BadRequestError", 400, "messages"),
    }


def test_disconnect(shown: Shown) -> None:
    """What was computed after the client went away is a few steps, not the 1,500 tokens of the answer."""
    assert 1 <= shown("disconnect") < 750


@pytest.mark.parametrize("block", [block for block in blocks("typescript") if '"openai"' in block.code], ids=str)
def test_programs_in_the_documents(block: Block, door: Door, tmp_path: Path) -> None:
    (tmp_path / "node_modules").symlink_to(of_node("openai").folder)
    (tmp_path / "program.mts").write_text(block.code.replace("http://127.0.0.1:8000/v1", door.api))
    compiler = NODE_CLIENT / "node_modules" / "typescript" / "bin" / "tsc"
    output_of(NODE, compiler, "--noCheck", "--module", "nodenext", "--target", "es2022", "program.mts", cwd=tmp_path)
    printed = output_of(NODE, "program.mjs", cwd=tmp_path)
    assert printed.strip()
    assert "null" not in printed
