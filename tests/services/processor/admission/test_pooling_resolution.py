"""What a request for vectors, scores or labels becomes: the ids of its inputs, and refusals that name the place."""

from __future__ import annotations

import json
from array import array
from dataclasses import replace
from typing import Any

import pytest
from ringline.engine.v1 import engine_pb2
from ringline.inference.v1 import inference_pb2 as pb
from ringline.types.v1 import pooling_pb2, sampling_pb2
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from engine_core.config import ModelSpec
from engine_core.pooling.facts import PoolingFacts
from engine_core.pooling.params import PoolingRequest, PoolingTask
from services.engine.engine_messages import submission_of
from services.processor.admission.pooling_resolution import PoolingResolution
from services.processor.admission.request_resolution import resolve_request
from services.processor.pooling.answers import compose
from services.processor.pooling.plan import PoolingMessage
from services.processor.request import ResolvedRequest
from services.processor.served_models import ServedModel
from services.ring.errors import Code, Reason, Refused, Status
from services.ring.identity import PeerId
from tests.services.processor.model_specs import served_model
from text_core.chat_templates import ChatTemplates
from text_core.tokenizer import Tokenizer as TextTokenizer

EMBED, TOKEN_EMBED, CLASSIFY = (
    pooling_pb2.POOLING_TASK_EMBED,
    pooling_pb2.POOLING_TASK_TOKEN_EMBED,
    pooling_pb2.POOLING_TASK_CLASSIFY,
)
MAX_MODEL_LEN = 24
WORDS = [f"w{number}" for number in range(50)]
TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'system' %}w40 {{ m.content }} {% elif m.role == 'query' %}w41 "
    "{{ m.content }} {% else %}w42 {{ m.content }} {% endif %}{% endfor %}"
    "{% if not add_generation_prompt %}w43{% endif %}"
)


def tokenizer() -> TextTokenizer:
    """Words, with BERT's special tokens around texts and between them."""
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS]
    made = Tokenizer(models.WordLevel({token: index for index, token in enumerate(tokens)}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.decoder = decoders.WordPiece()
    made.add_special_tokens([AddedToken(token, special=True) for token in tokens[:4]])
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return TextTokenizer.from_files({"tokenizer.json": made.to_str().encode()})


TOKENIZER = tokenizer()
CLS, SEP = 2, 3


def word(number: int) -> int:
    return 4 + number


def words(*numbers: int) -> str:
    return " ".join(WORDS[number] for number in numbers)


def model(*tasks: pooling_pb2.PoolingTask.ValueType, name: str = "vectors", **facts: Any) -> ServedModel:
    described = engine_pb2.GetModelResponse(
        model=name,
        model_digest="digest",
        vocab_size=TOKENIZER.vocab_size,
        max_model_len=MAX_MODEL_LEN,
        capabilities=["pooling"],
        pooling=pooling_pb2.PoolingFacts(tasks=tasks or [EMBED], **facts),
    )
    own = served_model()
    limits = replace(own.limits, name=name, vocab_size=TOKENIZER.vocab_size, max_model_len=MAX_MODEL_LEN, pools=True)
    config = json.dumps({"chat_template": TEMPLATE}).encode()
    chat = ChatTemplates.from_files({"tokenizer_config.json": config})
    return replace(own, model=described, limits=limits, tokenizer=TOKENIZER, chat=chat)


VECTORS = model(EMBED, TOKEN_EMBED, dimensions=8, normalizes=True)
PAIRS = model(CLASSIFY, labels=["LABEL_0"], pair_form=pooling_pb2.PAIR_FORM_SEGMENTS)
CHATS = model(CLASSIFY, labels=["yes"], pair_form=pooling_pb2.PAIR_FORM_TEMPLATE)


def texts(*given: str) -> list[pb.PoolingInput]:
    return [pb.PoolingInput(text=text) for text in given]


def ids(*given: int) -> pb.PoolingInput:
    return pb.PoolingInput(token_ids=sampling_pb2.TokenIds(ids=given))


def resolve(message: PoolingMessage, served: ServedModel = VECTORS, turn: int = 1 << 20) -> ResolvedRequest:
    resolution = PoolingResolution(message, served)
    while not resolution.advance(turn):
        pass
    return resolution.resolved("tenant", "")


def inputs_of(message: PoolingMessage, served: ServedModel = VECTORS, turn: int = 1 << 20) -> list[list[int]]:
    return [list(each.token_ids) for each in resolve(message, served, turn).submit.pooling.inputs]


def refusal(message: PoolingMessage, served: ServedModel = VECTORS) -> Status:
    with pytest.raises(Refused) as raised:
        resolve(message, served)
    return raised.value.status


@pytest.mark.parametrize("turn", [1, 5, 1 << 20])
def test_texts_and_ids_become_inputs_in_order_whatever_a_turn_takes(turn: int) -> None:
    message = pb.EmbedRequest(inputs=[*texts(words(1, 2)), ids(9, 8), *texts(words(3))])
    assert inputs_of(message, turn=turn) == [[CLS, word(1), word(2), SEP], [9, 8], [CLS, word(3), SEP]]
    message.options.add_special_tokens = False
    assert inputs_of(message, turn=turn) == [[word(1), word(2)], [9, 8], [word(3)]]


def test_a_prompt_comes_before_texts_and_never_before_ids() -> None:
    served = model(dimensions=8, prompts={"query": "w10 ", "title": "w11 "}, default_prompt="title")
    message = pb.EmbedRequest(inputs=[*texts(words(1)), ids(9)])
    assert inputs_of(message, served) == [[CLS, word(11), word(1), SEP], [9]]
    message.prompt_name = "query"
    assert inputs_of(message, served)[0] == [CLS, word(10), word(1), SEP]
    message.prompt_name = ""
    assert inputs_of(message, served)[0] == [CLS, word(1), SEP]
    message.prompt_name = "pasage"
    status = refusal(message, served)
    assert (status.code, status.field) == (Code.INVALID_ARGUMENT, "prompt_name")
    assert "expected 'query' or 'title'" in status.message


def test_queries_and_documents_that_are_compared_get_their_own_prompts() -> None:
    served = model(dimensions=8, prompts={"query": "w10 ", "passage": "w11 "})
    message = pb.ScoreRequest(queries=texts(words(1)), documents=texts(words(2), words(3)))
    assert [found[1:-1] for found in inputs_of(message, served)] == [
        [word(10), word(1)],
        [word(11), word(2)],
        [word(11), word(3)],
    ]


@pytest.mark.parametrize(
    ("truncation", "kept"), [(pb.TRUNCATION_END, slice(None, 22)), (pb.TRUNCATION_START, slice(-22, None))]
)
def test_an_input_that_is_too_long_is_cut_or_refused_by_its_place(
    truncation: pb.Truncation.ValueType, kept: slice
) -> None:
    numbers = range(30)
    message = pb.EmbedRequest(inputs=[*texts(words(0), words(*numbers)), ids(*map(word, numbers))])
    status = refusal(message)
    assert (status.code, status.field) == (Code.INVALID_ARGUMENT, "inputs[1]")
    assert "32 tokens are too long: expected at most 24" in status.message
    message.options.truncation = truncation
    _, text, own = inputs_of(message)
    assert text == [CLS, *[word(number) for number in numbers][kept], SEP]
    assert own == ([*map(word, numbers)][:24] if truncation == pb.TRUNCATION_END else [*map(word, numbers)][-24:])
    message.options.max_input_tokens = 3
    assert [len(found) for found in inputs_of(message)] == [3, 3, 3]


def test_a_pair_has_special_tokens_between_and_around_and_its_document_is_cut() -> None:
    message = pb.ScoreRequest(queries=texts(words(1, 2)), documents=texts(words(3), words(*range(30))))
    assert refusal(message, PAIRS).field == "documents[1]"
    message.options.truncation = pb.TRUNCATION_END
    first, second = resolve(message, PAIRS).submit.pooling.inputs
    assert (list(first.token_ids), first.second_text) == ([CLS, word(1), word(2), SEP, word(3), SEP], 4)
    assert list(second.token_ids) == [CLS, word(1), word(2), SEP, *map(word, range(19)), SEP]
    message.options.truncation = pb.TRUNCATION_START
    assert list(resolve(message, PAIRS).submit.pooling.inputs[1].token_ids)[4:-1] == [*map(word, range(11, 30))]
    message.queries[0].text = words(*range(25))
    status = refusal(message, PAIRS)
    assert status.field == "queries[0]"
    message.queries[0].CopyFrom(ids(5))
    assert refusal(message, PAIRS).field == "queries[0]"


def test_what_is_read_with_each_document_is_bounded_however_few_tokens_it_has() -> None:
    message = pb.ScoreRequest(queries=texts("x" * 20_000), documents=texts(*[words(3)] * 800))
    assert len(inputs_of(message, PAIRS)[0]) == 5
    message.documents.extend(texts(*[words(3)] * 39))
    status = refusal(message, PAIRS)
    assert (status.code, status.field, status.reason) == (Code.INVALID_ARGUMENT, "queries[0]", Reason.TOO_LARGE)
    assert "20000 characters are read with each of 839 documents: expected at most 19996" in status.message
    message.queries.extend(texts(*["x"] * 838))  # each is read once
    assert len(inputs_of(message, PAIRS)) == 839
    message = pb.ScoreRequest(instruction="x" * 16_000, queries=texts("x"), documents=texts(*["x"] * 1100))
    assert refusal(message, CHATS).field == "instruction"
    message = pb.ScoreRequest(queries=texts("x" * 20_000), documents=texts(*[words(3)] * 839))
    assert len(inputs_of(message)) == 840  # vectors are compared: each text is read once


def test_a_chat_template_shows_a_pair_and_the_instruction() -> None:
    message = pb.ScoreRequest(queries=texts("w1"), documents=texts("w2", words(*range(30))), instruction="w5")
    message.options.truncation = pb.TRUNCATION_END
    first, second = inputs_of(message, CHATS)
    head = [word(40), word(5), word(41), word(1), word(42)]
    assert first == [*head, word(2), word(43)]
    assert second == [*head, *map(word, range(18)), word(43)]
    message.options.truncation = pb.TRUNCATION_START
    assert inputs_of(message, CHATS)[1] == [*head, *map(word, range(12, 30)), word(43)]
    status = refusal(message, PAIRS)
    assert (status.code, status.field) == (Code.INVALID_ARGUMENT, "instruction")


def test_what_an_engine_gets_is_what_it_takes() -> None:
    message = pb.EmbedRequest(inputs=texts("w1", "w2"), dimensions=8, normalize=False)
    message.options.priority, message.options.cache_salt = -3, "salt"
    submit = resolve(message).submit
    submit.request_id, submit.epoch = "1-1", 1
    facts = PoolingFacts((PoolingTask.EMBED,), dimensions=8, normalizes=True)
    spec = ModelSpec("vectors", "A", TOKENIZER.vocab_size, MAX_MODEL_LEN, (), "float32", pooling=facts)
    submission = submission_of(submit, spec, 0.0, ["pooling"])
    core = submission.core_request.core
    assert isinstance(core, PoolingRequest)
    assert (core.params.dimensions, core.params.normalize, core.priority, core.tenant) == (8, False, -3, "tenant")
    assert {choice: list(each.token_ids) for choice, each in core.inputs.items()} == dict(enumerate(inputs_of(message)))
    assert (submission.pooled_bytes, submission.prompt_tokens) == (64, 6)


MANY = 2049


@pytest.mark.parametrize(
    ("message", "field", "problem"),
    [
        (pb.EmbedRequest(), "inputs", "empty"),
        (pb.EmbedRequest(inputs=texts("w1") * MANY), "inputs", "2049 inputs: expected 1 to 2048"),
        (pb.EmbedRequest(inputs=[*texts("w1"), pb.PoolingInput()]), "inputs[1]", "none is set"),
        (pb.EmbedRequest(inputs=texts("w1", "")), "inputs[1]", "empty"),
        (pb.EmbedRequest(inputs=[ids()]), "inputs[0]", "empty"),
        (pb.EmbedRequest(inputs=[ids(1), ids(5, 99)]), "inputs[1][1]", "99 is not in the vocabulary"),
        (pb.EmbedRequest(inputs=texts("w " * 200_000)), "inputs[0]", "bytes"),
        (pb.EmbedRequest(inputs=texts(" "), options={"add_special_tokens": False}), "inputs[0]", "no tokens"),  # type: ignore[arg-type]
        (pb.EmbedRequest(inputs=texts("w1"), dimensions=4), "dimensions", "expected 8"),
        (pb.EmbedRequest(inputs=texts("w1"), options={"max_input_tokens": 0}), "options.max_input_tokens", "0"),  # type: ignore[arg-type]
        (pb.ScoreRequest(documents=texts("w1")), "queries", "empty"),
        (pb.ScoreRequest(queries=texts("w1")), "documents", "empty"),
        (pb.ScoreRequest(queries=texts("w1", "w2"), documents=texts(*"abc")), "queries", "2 queries for 3 documents"),
        (pb.ScoreRequest(queries=texts("w1"), documents=texts("w1"), instruction="x"), "instruction", "no place"),
    ],
)
def test_a_refusal_names_the_place(message: PoolingMessage, field: str, problem: str) -> None:
    status = refusal(message)
    assert (status.code, status.field) == (Code.INVALID_ARGUMENT, field)
    assert problem in status.message


def test_dimensions_are_those_that_a_model_was_trained_for() -> None:
    message = pb.EmbedRequest(inputs=texts("w1"), dimensions=4)
    some = model(dimensions=8, is_matryoshka=True, matryoshka_dimensions=[4, 8])
    assert resolve(message, some).submit.pooling.params.dimensions == 4
    message.dimensions = 5
    assert "expected one of 4, 8" in refusal(message, some).message
    any_of_them = model(dimensions=8, is_matryoshka=True)
    plan = resolve(message, any_of_them).answer_plan
    assert plan is not None
    assert plan.width == 5
    message.dimensions = 9
    assert "out of range: expected 1 to 8" in refusal(message, any_of_them).message


def test_results_and_inputs_together_are_bounded_before_anything_is_computed() -> None:
    wide = model(EMBED, TOKEN_EMBED, dimensions=1 << 22)
    status = refusal(pb.EmbedRequest(inputs=texts("w1", "w2", "w3")), wide)
    assert (status.field, status.reason) == ("inputs", Reason.TOO_LARGE)
    assert "3 rows of 4194304 numbers" in status.message
    status = refusal(pb.EmbedRequest(inputs=texts("w1"), per_token=True), wide)
    assert (status.field, status.reason) == ("inputs[0]", Reason.TOO_LARGE)


@pytest.mark.parametrize(
    ("message", "served", "does"),
    [
        (pb.ClassifyRequest(inputs=texts("w1")), VECTORS, "makes vectors (Embed, Score), and makes no labels"),
        (pb.EmbedRequest(inputs=texts("w1")), PAIRS, "scores pairs (Score), and makes no vectors"),
        (pb.EmbedRequest(inputs=texts("w1"), per_token=True), model(dimensions=8), "makes no vectors of tokens"),
        (pb.ScoreRequest(), model(CLASSIFY, labels=["a", "b"]), "makes labels (Classify), and scores no pairs"),
        (
            pb.EmbedRequest(inputs=texts("w1")),
            served_model(),
            "generates text (Generate, Session), and makes no vectors",
        ),
    ],
)
def test_a_model_that_is_for_something_else_says_for_what(
    message: PoolingMessage, served: ServedModel, does: str
) -> None:
    status = refusal(message, served)
    assert (status.code, status.field) == (Code.FAILED_PRECONDITION, "model")
    assert does in status.message


def test_a_model_of_vectors_generates_nothing_and_says_so() -> None:
    with pytest.raises(Refused) as raised:
        resolve_request(pb.GenerateRequest(text="w1"), VECTORS, "", PeerId("p", 1))
    assert raised.value.status.code is Code.FAILED_PRECONDITION
    assert "makes vectors (Embed, Score), and generates no text" in raised.value.status.message


@pytest.mark.parametrize(
    ("similarity", "expected"), [("", [1.0, 0.0]), ("dot", [4.0, 0.0]), ("euclidean", [0.0, -2.5])]
)
def test_vectors_are_compared_as_the_model_says(similarity: str, expected: list[float]) -> None:
    served = model(EMBED, dimensions=2, similarity=similarity)
    message = pb.ScoreRequest(queries=texts(words(1)), documents=texts(words(2), words(3)))
    plan = resolve(message, served).answer_plan
    assert plan is not None
    vectors = [array("f", each).tobytes() for each in ([2.0, 0.0], [2.0, 0.0], [0.0, 1.5])]
    answer = compose(plan, vectors, pb.PoolingReport())
    assert list(pb.ScoreResponse.FromString(answer.packed).scores) == expected
