"""Vectors, scores, rankings and labels by both clients; the server is real, and its answers follow simple rules."""

import asyncio
import pickle
import struct
from array import array
from functools import partial
from typing import get_type_hints

import grpc
import numpy
import pytest
import ringline
from ringline.inference.v1 import inference_pb2 as pb
from ringline.pooling_messages import embed_pieces, score_pieces

from tests.clients.either_client import CLIENTS, answer, connected
from tests.clients.pooling_server import LABELS, PoolingInference, score, vector
from tests.clients.scripted_server import serving

pytestmark = pytest.mark.usefixtures("short_delays")


@pytest.fixture
async def server():
    async with serving(PoolingInference()) as served:
        yield served


@pytest.fixture(params=[ringline.Client, ringline.AsyncClient], ids=["blocking", "asyncio"])
async def client(request, server):
    async with connected(request.param, server.address) as made:
        yield made


def expected(text: str, width: int = 4) -> array:
    return array("f", vector(list(text.encode()), width))


async def test_vectors_come_in_the_order_of_the_texts(server, client):
    found = await answer(client, lambda: client.embed(["a dog", "zwei Hunde", "日本"], model="tiny"))
    assert list(found) == [expected("a dog"), expected("zwei Hunde"), expected("日本")]
    assert (found[-1], len(found), found.dimensions) == (expected("日本"), 3, 4)
    assert found.usage == ringline.Usage(prompt_tokens=21, cached_tokens=0, completion_tokens=0)
    assert found.report == ringline.PoolingReport(found.usage, (5, 10, 6), "tiny", "d", "n0", ("r1",))
    assert (found.numpy().dtype, found.numpy().tolist()) == (numpy.float32, [row.tolist() for row in found])
    assert pickle.loads(pickle.dumps(found)) == found
    [sent] = server.service.pooled
    assert sent == pb.EmbedRequest(
        model="tiny", inputs=[pb.PoolingInput(text=text) for text in ("a dog", "zwei Hunde", "日本")]
    )
    with pytest.raises(IndexError, match="3: there are 3 inputs"):
        found[3]


@pytest.mark.parametrize(
    ("inputs", "sent"),
    [
        ("one text", ["one text"]),
        ([5, 6], [[5, 6]]),
        ([[5, 6], "a text", (7,)], [[5, 6], "a text", [7]]),
        (numpy.array([[5, 6], [7, 8]]), [[5, 6], [7, 8]]),
        (numpy.array([5, 6]), [[5, 6]]),
        ((text for text in "ab"), ["a", "b"]),
    ],
)
def test_inputs_are_texts_or_ids(inputs, sent):
    [piece] = embed_pieces(inputs, {})
    assert [one.text or list(one.token_ids.ids) for one in piece.request.inputs] == sent


async def test_a_token_can_have_a_vector_of_its_own(client):
    found = await answer(client, lambda: client.embed(["ab", "c"], per_token=True, dimensions=2))
    assert (len(found), found.counts, found.dimensions) == (2, (2, 1), 2)
    assert list(found) == [expected("a", 2) + expected("b", 2), expected("c", 2)]
    assert found.numpy().shape == (3, 2)


async def test_a_long_list_goes_in_several_messages_a_few_at_a_time(server, client):
    service, let_go = server.service, asyncio.Event()
    texts = [f"text {number}" for number in range(512 * 9 + 1)]
    service.numerics = iter(["n0"] * 9 + ["n1"])

    async def hold(request):
        if service.under_way == 4:
            asyncio.get_running_loop().call_later(0.05, let_go.set)  # a fifth one would have come by then
        await let_go.wait()
        await asyncio.sleep(0.02 if request.inputs[0].text == "text 0" else 0.0)

    service.wait = hold
    found = await answer(client, lambda: client.embed(texts))
    assert list(found) == list(map(expected, texts))
    assert sorted(len(request.inputs) for request in service.pooled) == [1] + [512] * 9
    assert service.most_under_way == 4
    assert found.usage.prompt_tokens == sum(map(len, texts)) == sum(found.report.input_tokens)
    assert (found.report.model_digest, found.report.numerics, len(found.report.server_request_ids)) == ("d", "", 10)


def test_messages_are_bounded_by_bytes():
    texts = ["x" * 400_000, "日" * 150_000, "y" * 2**21, "z", "z"]
    pieces = list(embed_pieces(texts, {}))
    assert [piece.places["inputs"] for piece in pieces] == [0, 2, 3]
    assert [piece.inputs for piece in pieces] == [2, 1, 2]
    by_token = list(embed_pieces(["x" * 5000, [1] * 1000, "y" * 5000], {"per_token": True}))
    assert [piece.inputs for piece in by_token] == [2, 1]
    assert by_token[0].request.per_token
    pairs = list(score_pieces(["q" * 600_000] * 2, ["d" * 100_000] * 2, {}))
    assert [(len(piece.request.queries), len(piece.request.documents)) for piece in pairs] == [(1, 1), (1, 1)]


@pytest.mark.parametrize("bad", [3, 700])
async def test_a_refusal_names_the_input_among_all(server, client, bad):
    texts = ["x"] * 1200
    texts[bad] = ""
    with pytest.raises(ringline.InvalidRequest) as refused:
        await answer(client, lambda: client.embed(texts))
    assert (refused.value.field, str(refused.value)) == (f"inputs[{bad}]", f"inputs[{bad}]: empty: expected a text")
    with pytest.raises(ringline.InvalidRequest, match=rf"documents\[{bad}\]: empty"):
        await answer(client, lambda: client.rerank("x", texts))
    assert (await answer(client, lambda: client.embed("x")))[0] == expected("x")  # the client goes on


async def test_a_failure_ends_the_call_without_sending_the_rest(server, client):
    async def refuse_first(request):
        await asyncio.sleep(0.1 if request.inputs[0].text else 0)

    server.service.wait = refuse_first
    with pytest.raises(ringline.InvalidRequest, match=r"inputs\[0\]"):
        await answer(client, lambda: client.embed(["", *("x" * 30_000)]))
    await asyncio.sleep(0.2)
    assert len(server.service.pooled) <= 5


async def test_scores_are_in_the_order_of_the_documents(server, client):
    found = await answer(client, lambda: client.score("dog", ["god", "dull", "cat"], instruction="Match."))
    assert list(found) == pytest.approx([1.0, 1 / 3, 0.0])
    assert (found[1], len(found)) == (found.values[1], 3)
    assert server.service.pooled[-1].instruction == "Match."
    pairs = [("ab", "a"), ("cd", "xy"), ("e", "e")]
    found = await answer(client, lambda: client.score([q for q, _ in pairs], [d for _, d in pairs], activation=False))
    assert list(found) == [score(q.encode(), d.encode()) for q, d in pairs]
    assert server.service.pooled[-1].HasField("activation")
    with pytest.raises(ringline.InvalidRequest, match="queries: 2: expected 1, or as many as documents, of which"):
        await answer(client, lambda: client.score(["a", "b"], ["c"]))


async def test_a_query_goes_with_each_message_and_pairs_stay_together(server, client):
    documents = [f"document {number}" for number in range(600)]
    found = await answer(client, lambda: client.score("13", documents))
    assert list(found) == pytest.approx([score(b"13", text.encode()) for text in documents])
    assert sorted(len(request.documents) for request in server.service.pooled) == [88, 512]
    assert all(len(request.queries) == 1 for request in server.service.pooled)
    found = await answer(client, lambda: client.score(documents[::-1], documents))
    assert list(found) == pytest.approx(
        [score(q.encode(), d.encode()) for q, d in zip(documents[::-1], documents, strict=True)]
    )


async def test_a_ranking_has_the_best_first_and_of_equal_ones_the_earlier(client):
    documents = ["cat", "god", "dull", "good dog", "do"]
    found = await answer(client, lambda: client.rerank("dog", documents, top_n=4))
    assert [(one.index, one.document) for one in found] == [(1, "god"), (3, "good dog"), (4, "do"), (2, "dull")]
    assert [one.score for one in found] == pytest.approx([1, 1, 2 / 3, 1 / 3])
    assert (found[0], len(found), found.usage.prompt_tokens) == (found.values[0], 4, 35)
    assert len(await answer(client, lambda: client.rerank("dog", iter(documents)))) == 5


async def test_labels_of_inputs_and_of_tokens(server, client):
    found = await answer(client, lambda: client.classify(["ab", "klmnop"]))
    first, second = found
    assert first == ringline.Classification(LABELS, tuple(expected("ab", 3)))
    assert (first.label, first.value) == ("glad", expected("ab", 3)[1])
    assert (second.label, len(found), found[1]) == ("sad", 2, second)
    assert found.numpy().tolist() == [list(first.values), list(second.values)]
    by_token = await answer(client, lambda: client.classify(["ab", "klmnop"], per_token=True, activation=False))
    assert [len(by_token.tokens(index)) for index in (0, 1)] == [2, 6] == list(by_token.counts)
    assert by_token.tokens(1)[2].values == tuple(expected("m", 3))
    with pytest.raises(TypeError, match="call tokens"):
        by_token[0]


async def test_a_lost_server_is_asked_again(server, client):
    server.service.unary_failures = [grpc.StatusCode.UNAVAILABLE] * 2
    found = await answer(client, lambda: client.embed(["x"] * 1100))
    assert list(found) == [expected("x")] * 1100
    assert sorted(len(request.inputs) for request in server.service.pooled) == [76, 512, 512]


async def test_another_server_takes_over(client, server):
    async with serving(PoolingInference()) as other, connected(type(client), [server.address, other.address]) as both:

        async def die(request):
            stopping.append(asyncio.create_task(server.server.stop(None)))
            await asyncio.Event().wait()

        stopping: list[asyncio.Task] = []
        server.service.wait = die
        for text in ("first", "second"):
            assert (await answer(both, partial(both.embed, text)))[0] == expected(text)
    assert len(other.service.pooled) == 2


async def test_a_timeout_counts_for_all_messages_together(server, client):
    async def dawdle(request):
        await asyncio.sleep(0.08)

    server.service.wait = dawdle
    with pytest.raises(ringline.DeadlineExceeded):
        await answer(client, lambda: client.embed(["x"] * 512 * 40, timeout=0.2))
    assert len(server.service.pooled) < 40


async def test_results_may_be_large(server, client):
    server.service.extra_values = bytes(32 << 20)
    with pytest.raises(ringline.ProtocolError, match="33554448 bytes of values for 1 rows of 4 numbers of 1 inputs"):
        await answer(client, lambda: client.embed("x"))


async def test_an_old_server_is_told(client, server, monkeypatch):
    async with serving(_Old()) as old, connected(type(client), old.address) as asking:
        with pytest.raises(ringline.FailedPrecondition, match="too old to know Embed"):
            await answer(asking, lambda: asking.embed("x"))


class _Old(PoolingInference):
    Embed = PoolingInference.__mro__[2].Embed  # as generated: it is not implemented


async def test_a_model_says_what_it_is_for(client, server):
    [model] = await answer(client, client.models)
    assert model.pooling == ringline.Pooling(
        ("embed", "classify"), 4, False, (), True, LABELS, {"query": "Q: "}, "", scores_pairs=True
    )
    server.service.model.ClearField("pooling")
    [model] = await answer(client, client.models)
    assert model.pooling is None


def test_the_options_are_the_fields_of_the_contract():
    fields = set(pb.PoolingOptions.DESCRIPTOR.fields_by_name) - {"timeout_ms", "truncation"} | {"timeout", "truncate"}
    for kind, options, inputs in (
        (pb.EmbedRequest, ringline.EmbedOptions, {"inputs"}),
        (pb.ScoreRequest, ringline.ScoreOptions, {"queries", "documents"}),
        (pb.ClassifyRequest, ringline.ClassifyOptions, {"inputs"}),
    ):
        own = set(kind.DESCRIPTOR.fields_by_name) - inputs - {"options", "request_id"}
        assert set(get_type_hints(options)) == fields | own


def test_options_become_fields():
    options = {
        "model": "m",
        "truncate": "start",
        "max_input_tokens": 7,
        "add_special_tokens": False,
        "priority": -1,
        "cache_salt": "s",
        "requires": ["pooling"],
        "traceparent": "t",
        "dimensions": 2,
        "normalize": False,
        "prompt_name": "",
        "per_token": None,
    }
    [piece] = embed_pieces("x", options)
    common = pb.PoolingOptions(
        truncation=pb.TRUNCATION_START,
        max_input_tokens=7,
        add_special_tokens=False,
        priority=-1,
        cache_salt="s",
        requires=["pooling"],
        traceparent="t",
    )
    assert piece.request == pb.EmbedRequest(
        model="m",
        inputs=[pb.PoolingInput(text="x")],
        dimensions=2,
        normalize=False,
        prompt_name="",
        options=common,
    )
    [cut], [whole] = embed_pieces("x", {"truncate": True}), embed_pieces("x", {"truncate": False})
    assert cut.request.options.truncation == pb.TRUNCATION_END
    assert whole.request.options.truncation == pb.TRUNCATION_NONE


@pytest.mark.parametrize(
    ("inputs", "options", "problem"),
    [
        ([], {}, "inputs: empty: expected at least one input"),
        (None, {}, "inputs: expected a text, a list of token ids, or a list of these, got NoneType"),
        (b"ab", {}, "inputs: expected a text, a list of token ids, or a list of these, got bytes"),
        (["a", None], {}, r"inputs\[1\]: expected a text or a list of token ids, got NoneType"),
        (["a", {"text": "b"}], {}, r"inputs\[1\]: expected a text or a list of token ids, got dict"),
        (["a", [1, -2]], {}, r"inputs\[1\]\[1\]: -2 is out of range: expected at least 0"),
        ([1, "b"], {}, r"inputs\[0\]\[1\]: expected int, got str"),
        ("\ud800", {}, r"inputs\[0\]: surrogates not allowed"),
        ("a", {"dimension": 2}, "unknown option 'dimension'; did you mean 'dimensions'"),
        ("a", {"instruction": "x"}, "unknown option 'instruction'$"),
        ("a", {"encoding_format": "base64"}, "'encoding_format' is not supported: vectors come as 32-bit floats"),
        ("a", {"dimensions": "2"}, "dimensions: expected int, got str"),
        ("a", {"truncate": "left"}, "truncate: 'left': expected True, False, 'end' or 'start'"),
        ("a", {"truncate": 1.5}, "truncate: 1.5: expected True, False, 'end' or 'start'"),
        ("a", {"max_input_tokens": -1}, "max_input_tokens: -1 is out of range"),
    ],
)
def test_what_no_message_can_hold_is_refused_before_sending(inputs, options, problem):
    with pytest.raises((TypeError, ringline.InvalidRequest), match=problem):
        list(embed_pieces(inputs, options))


@CLIENTS
@pytest.mark.parametrize(
    ("query", "top_n", "problem"),
    [
        (["a", "b"], None, "query: 2 of them: expected one; score"),
        ("a", 0, "top_n: 0 is out of range: expected at least 1"),
        ("a", "2", "top_n: expected int, got str"),
    ],
)
async def test_unusable_rankings_are_refused(kind, query, top_n, problem):
    async with connected(kind, "127.0.0.1:1") as client:
        with pytest.raises((TypeError, ringline.InvalidRequest), match=problem):
            await answer(client, lambda: client.rerank(query, ["x"], top_n=top_n))


@pytest.mark.parametrize(
    "reply",
    [
        pb.EmbedResponse(values=bytes(12), dimensions=4),
        pb.EmbedResponse(values=b"", dimensions=0),
        pb.EmbedResponse(values=bytes(16), dimensions=4, counts=[1, 1]),
    ],
)
async def test_values_that_do_not_fit_are_a_broken_contract(client, server, monkeypatch, reply):
    async def embed(self, request, context):
        return reply

    monkeypatch.setattr(PoolingInference, "Embed", embed)
    async with serving(PoolingInference()) as broken, connected(type(client), broken.address) as asking:
        with pytest.raises(ringline.ProtocolError, match="the server sent"):
            await answer(asking, lambda: asking.embed(["x"]))


async def test_a_closed_client_says_so(client, server):
    begun = asyncio.Event()

    async def forever(request):
        begun.set()
        await asyncio.Event().wait()

    server.service.wait = forever
    asked = asyncio.create_task(answer(client, lambda: client.embed(["x"] * 2000)))
    await begun.wait()
    await answer(client, client.close)
    with pytest.raises(ringline.Cancelled, match="closed"):
        await asked


def test_values_are_little_endian(monkeypatch):
    from ringline.pooling_messages import embeddings_from

    [piece] = embed_pieces("x", {})
    reply = pb.EmbedResponse(values=struct.pack("<2f", 1.0, 2.5), dimensions=2)
    assert embeddings_from([(piece, reply)])[0].tolist() == [1.0, 2.5]
    monkeypatch.setattr("sys.byteorder", "big")
    reply.values = struct.pack(">2f", 1.0, 2.5)
    assert embeddings_from([(piece, reply)])[0].tolist() == [1.0, 2.5]
