"""embed, rerank and classify: a file's lines go out in batches, and what comes of them stays with its line."""

import asyncio
import base64
import json
from array import array

import numpy
import pytest
from click.testing import CliRunner, Result

from services.cli.commands import _lines
from services.cli.commands.classify import classify
from services.cli.commands.embed import embed
from services.cli.commands.rerank import rerank
from tests.clients.pooling_server import PoolingInference, vector
from tests.clients.scripted_server import serving


@pytest.fixture
async def processor():
    async with serving(PoolingInference()) as served:
        yield served


@pytest.fixture
def run(processor):
    async def invoke(command, *args, stdin: str | bytes | None = None) -> Result:
        given = [*map(str, args), "--address", processor.address]
        return await asyncio.to_thread(CliRunner().invoke, command, given, input=stdin)

    return invoke


def expected(text: str) -> list[float]:
    return list(array("f", vector(list(text.encode()))))


async def test_each_line_has_a_vector_with_all_its_bits(run, processor, tmp_path):
    texts = tmp_path / "texts.txt"
    texts.write_text("a dog\nzwei Hunde\r\n日本")
    result = await run(embed, texts, "--model", "tiny", "--prompt-name", "query", "--dimensions", 3)
    assert result.exit_code == 0, result.output
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert [row["index"] for row in rows] == [0, 1, 2]
    found = [list(array("f", row["embedding"])) for row in rows]
    assert found == [expected(text)[:3] for text in ("a dog", "zwei Hunde", "日本")]
    [sent] = processor.service.pooled
    assert (sent.model, sent.prompt_name, sent.dimensions) == ("tiny", "query", 3)


async def test_lines_may_be_json(run):
    lines = '{"text": "a", "id": "x1"}\n{"token_ids": [5, 6]}\n'
    result = await run(embed, "-", "--jsonl", "--format", "base64", stdin=lines)
    first, second = map(json.loads, result.stdout.splitlines())
    assert (first["index"], first["id"], "id" in second) == (0, "x1", False)
    assert [list(array("f", base64.b64decode(row["embedding"]))) for row in (first, second)] == [
        expected("a"),
        list(array("f", vector([5, 6]))),
    ]


async def test_an_array_for_numpy(run, tmp_path, monkeypatch):
    monkeypatch.setattr(_lines, "_MOST_LINES", 2)
    output = tmp_path / "vectors.npy"
    result = await run(embed, "-", "--format", "npy", "--output", output, stdin="a\nb\nc\n")
    assert (result.exit_code, result.stdout) == (0, "")
    found = numpy.load(output)
    assert (found.dtype, found.tolist()) == (numpy.float32, [expected(text) for text in "abc"])
    refused = await run(embed, "-", "--format", "npy", stdin="a\n")
    assert (refused.exit_code, "needs --output" in refused.output) == (2, True)


async def test_batches_are_bounded_and_some_are_under_way_at_once(run, processor, monkeypatch):
    monkeypatch.setattr(_lines, "_MOST_LINES", 3)
    monkeypatch.setattr(_lines, "_MOST_BYTES", 30)

    async def dawdle(request):
        await asyncio.sleep(0.02)

    processor.service.wait = dawdle
    texts = [f"text {number}" for number in range(20)] + ["long " * 10, "b"]
    result = await run(embed, "-", "--concurrency", 3, stdin="\n".join(texts))
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert [list(array("f", row["embedding"])) for row in rows] == list(map(expected, texts))
    assert max(len(request.inputs) for request in processor.service.pooled) == 3
    assert processor.service.most_under_way == 3


@pytest.mark.parametrize(
    ("lines", "args", "problem"),
    [
        (b"a\n\nb\n", (), "-:2: empty: expected an input on each line"),
        (b"a\nb\n\xff\n", (), "-:3: not UTF-8 at byte 0"),
        (b'{"text": "a"}\n{"text": 5}\n', ("--jsonl",), '-:2: "text" is int: expected a text'),
        (b'{"text": "a"}\nhallo\n', ("--jsonl",), "-:2: not JSON"),
        (b"[1]\n", ("--jsonl",), "-:1: list in place of an object"),
        (b"{}\n", ("--jsonl",), '-:1: no "text": expected an object such as'),
        (b'{"text": "a", "token_ids": [1]}\n', ("--jsonl",), '-:1: "text" and "token_ids" both'),
        (b'{"token_ids": [true]}\n', ("--jsonl",), '-:1: "token_ids" is no list of numbers'),
        (b'{"token_ids": [1, -1]}\n', ("--jsonl",), "-:1: [1]: -1 is out of range"),
        (b"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx", (), "-:1: longer than"),
    ],
)
async def test_a_bad_line_is_named(run, monkeypatch, lines, args, problem):
    monkeypatch.setattr(_lines, "_LONGEST_LINE", 38)
    result = await run(embed, "-", *args, stdin=lines)
    assert (result.exit_code, problem in result.stderr) == (1, True), result.output


async def test_a_line_that_the_server_refuses_is_named(run, processor, monkeypatch):
    monkeypatch.setattr(_lines, "_MOST_LINES", 2)

    async def refuse(request):
        if request.inputs[-1].text == "bad":
            request.inputs[-1].text = ""  # which the server refuses by its place

    processor.service.wait = refuse
    result = await run(embed, "-", stdin="a\nb\nc\nbad\ne\n")
    assert (result.exit_code, "-:4: empty: expected a text" in result.stderr) == (1, True), result.output
    assert len(result.stdout.splitlines()) == 2


async def test_lines_are_ranked(run, processor, monkeypatch):
    monkeypatch.setattr(_lines, "_MOST_LINES", 2)
    result = await run(rerank, "dog", "-", "--top-n", 3, "--instruction", "Match.", stdin="cat\ngood dog\ndull\ngod\n")
    assert result.stdout == "1.000000\tgood dog\n1.000000\tgod\n0.333333\tdull\n"
    assert {request.instruction for request in processor.service.pooled} == {"Match."}
    lines = '{"text": "cat", "id": 7}\n{"text": "dog"}\n'
    result = await run(rerank, "dog", "-", "--jsonl", "--json", stdin=lines)
    assert [json.loads(line) for line in result.stdout.splitlines()] == [
        {"index": 1, "score": 1.0, "text": "dog"},
        {"index": 0, "id": 7, "score": 0.0, "text": "cat"},
    ]
    assert (await run(rerank, "dog", "-", stdin="")).stdout == ""


async def test_lines_are_labelled(run, processor):
    result = await run(classify, "-", "--no-activation", stdin="ab\nklmnop\n")
    rows = [line.split("\t") for line in result.stdout.splitlines()]
    assert [(row[0], row[2]) for row in rows] == [("glad", "ab"), ("sad", "klmnop")]
    assert [request.activation for request in processor.service.pooled] == [False]
    result = await run(classify, "-", "--json", stdin="ab\n")
    [row] = map(json.loads, result.stdout.splitlines())
    assert (row["label"], list(array("f", row["scores"].values()))) == ("glad", expected("ab")[:3])


async def test_what_the_server_refuses_names_the_flag(run, tmp_path):
    result = await run(embed, "-", "--max-input-tokens", -1, stdin="a\n")
    assert (result.exit_code, "--max-input-tokens: -1 is out of range" in result.stderr) == (1, True), result.output
    missing = await run(embed, tmp_path / "none.txt")
    assert (missing.exit_code, "No such file" in missing.output) == (2, True)


def test_no_server():
    result = CliRunner().invoke(embed, ["-", "--address", "127.0.0.1:9"], input="a\n")
    assert (result.exit_code, "`ringline serve` starts a server" in result.stderr) == (1, True)


def test_help_teaches():
    for command in (embed, rerank, classify):
        text = CliRunner().invoke(command, ["--help"]).output
        assert "Examples:" in text
        assert '"-": standard input' in text
