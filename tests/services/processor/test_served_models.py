"""Which models are served side by side, and which of them a request belongs to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from ringline.engine.v1 import engine_pb2
from ringline.inference.v1 import inference_pb2
from ringline.types.v1 import constraint_pb2, pooling_pb2

from services.common.links.redial import LinkRefused
from services.common.rpc.message_limits import parse
from services.common.rpc.shared_messages import status_from_proto
from services.processor.admission.validation import check_model
from services.processor.listed_models import list_models
from services.processor.served_models import ModelLimits, ServedModels, TextCodec, generation_of
from services.processor.suitability import SUITS
from services.ring.errors import Code, Reason, Refused
from services.ring.identity import BEAM_SEARCH, MEDIA, PeerId
from tests.services.processor.model_specs import codec, served_model
from tests.services.processor.ring_requests import SEED, Ring, ask, expected, route_of
from tests.services.ring.ring_simulation import MAX_GENERATIONS, NEXT, PRESENT
from tests.text_core.pictures.samples import facts_of
from text_core.chat_templates import ChatTemplates
from text_core.grammar.constraints import MAX_CHOICES, MAX_TEXT_BYTES
from text_core.pictures.registry import write_facts

FACTS = replace(facts_of("DeepseekOCRForCausalLM"), config={"image_token_id": 260})


def roll_out(world: Ring, *names: str) -> None:
    """These engines are replaced by such as serve the next model."""
    for name in names:
        world.kill_engine(name, NEXT)
    world.heal()
    world.flow()


def test_requests_finish_on_their_own_model_while_new_ones_go_to_the_next(wide: Ring) -> None:
    old = wide.ask(ask())
    other = {"engine-0": "engine-1", "engine-1": "engine-0"}[route_of(old).engine.name]
    roll_out(wide, other)
    assert route_of(wide.ask(ask(name="new"))).engine.name == other
    wide.settle()
    ids = {"r": [], "new": []}  # type: dict[str, list[int]]
    for response in wide.events("delta"):
        ids[response.request_id] += response.delta.token_ids
    assert ids == {
        "r": [PRESENT.token_at(SEED, 0, position) for position in range(20)],
        "new": [NEXT.token_at(SEED, 0, position) for position in range(len(ids["new"]))],
    }
    started = {response.request_id: response.started.model_digest for response in wide.events("started")}
    assert started == {"r": PRESENT.digest, "new": NEXT.digest}
    assert wide.quiet


def test_a_request_waits_for_an_engine_of_its_own_model_and_goes_on_there(wide: Ring) -> None:
    wide.begin(tokens=2)
    roll_out(wide, "engine-0", "engine-1")
    wide.settle()
    assert 0 < len(wide.ids()) < 20, "the next model computes nothing of it"
    wide.kill_engine("engine-0", PRESENT)
    wide.heal()
    wide.settle()
    assert wide.ids() == expected(20)
    assert wide.quiet


def test_a_request_whose_model_is_gone_ends_and_says_so(wide: Ring) -> None:
    wide.begin(tokens=2)
    wide.dispatcher.route_timeout = -1.0
    roll_out(wide, "engine-0", "engine-1")
    wide.settle()
    status = status_from_proto(wide.end().error)
    assert (status.code, status.reason) == (Code.UNAVAILABLE, Reason.MODEL_GONE)
    assert wide.ids() == expected(len(wide.ids()))
    assert wide.quiet
    assert [held.model.model_digest for held in wide.models.served()] == [NEXT.digest]
    assert len(wide.models.held) == 1, "none is kept"


def test_a_rollback_makes_the_earlier_model_the_newest_again(wide: Ring) -> None:
    for served in (NEXT, PRESENT):
        wide.kill_engine("engine-1", served)
        wide.heal()
        wide.flow()
        assert wide.model.model.model_digest == served.digest


def test_an_engine_with_one_model_too_many_is_not_linked(wide: Ring) -> None:
    wide.ask(ask())  # a request of the present one, which keeps it
    stream = wide.stream()
    for number in range(MAX_GENERATIONS - 1):
        wide.models.add(model := another(number), CODEC)
        wide.link_events.engine_up(stream, PeerId(model.name, model.incarnation), model)  # type: ignore[arg-type]
    with pytest.raises(LinkRefused, match=r"limit of 3 models \(--max-generations\) reached, all in use"):
        wide.models.add(another(9), CODEC)
    assert len(wide.models.held) == MAX_GENERATIONS
    wide.link_events.engine_down(stream, PeerId("engine-0", 1000))  # type: ignore[arg-type]
    wide.models.add(another(9), CODEC)


def test_an_engine_whose_model_was_dropped_before_it_was_linked_is_refused(world: Ring) -> None:
    stream = world.stream()
    for number in range(MAX_GENERATIONS):
        world.models.add(another(number), CODEC)
    with pytest.raises(LinkRefused, match="its model was dropped for later ones: limit of 3 models"):
        world.link_events.engine_up(stream, PeerId("engine-0", 1000), another(0))  # type: ignore[arg-type]


async def test_a_known_tokenizer_is_not_fetched_again(world: Ring) -> None:
    class Stub:
        async def GetModel(self, request: engine_pb2.GetModelRequest, **call: float) -> engine_pb2.GetModelResponse:
            return another(1)

    await world.link_events.prepare(Stub())
    assert world.models.for_resume("", "another 1") is not None


CODEC = TextCodec(PRESENT.tokenizer, ChatTemplates({}))


def another(number: int) -> engine_pb2.GetModelResponse:
    """What an engine of yet another model says, which was started later than all the others."""
    model = engine_pb2.GetModelResponse()
    model.CopyFrom(PRESENT.message)
    model.model_digest, model.name, model.incarnation = f"another {number}", f"engine-{number}", 1000 + number
    return model


def test_a_request_may_name_a_model_by_an_alias_and_the_models_own_name_comes_first() -> None:
    first, second = (served_model().model for _ in range(2))
    first.model, second.model, second.model_digest = "own", "other", "second"
    models = ServedModels(4, lambda: [generation_of(first), generation_of(second)], aliases=("nick", "other"))
    for model in (first, second):
        models.add(model, codec())
    found = {name: models.for_new(name) for name in ("", "own", "nick", "other")}
    names = {name: model and model.limits.name for name, model in found.items()}
    assert names == {"": "own", "own": "own", "nick": "own", "other": "other"}
    assert models.for_resume("nick", "second") is models.for_resume("", "second") is found["other"]
    own = found["own"]
    assert own is not None
    check_model("nick", own.limits)
    with pytest.raises(Refused, match="'stranger' is not served here: expected 'own' or 'nick' or 'other'"):
        check_model("stranger", own.limits)
    listed = list_models([own]).models
    assert [model.name for model in listed] == ["own", "nick", "other"]
    assert len({model.model_digest for model in listed}) == 1


def of_kind(name: str, *tasks: pooling_pb2.PoolingTask, pairs: bool = False) -> engine_pb2.GetModelResponse:
    """What an engine of a model says; without tasks, of one that generates."""
    model = served_model().model
    model.model = model.model_digest = name
    if tasks:
        model.pooling.tasks.extend(tasks)
        form = pooling_pb2.PAIR_FORM_SEGMENTS if pairs else pooling_pb2.PAIR_FORM_UNSPECIFIED
        model.pooling.pair_form = form
    return model


EMBEDS, CLASSIFIES = pooling_pb2.POOLING_TASK_EMBED, pooling_pb2.POOLING_TASK_CLASSIFY
TEXT, VECTORS = of_kind("text"), of_kind("vectors", EMBEDS)
PAIRS, LABELS = of_kind("pairs", CLASSIFIES, pairs=True), of_kind("labels", CLASSIFIES)


@pytest.mark.parametrize(
    ("served", "vectors", "scores", "labels"),
    [
        ([TEXT, VECTORS, PAIRS, LABELS], "vectors", "pairs", "labels"),
        ([LABELS, PAIRS, VECTORS, TEXT], "vectors", "pairs", "labels"),
        ([TEXT, VECTORS, LABELS], "vectors", "vectors", "labels"),
        ([VECTORS, PAIRS], "vectors", "pairs", "pairs"),
        ([TEXT, LABELS], "labels", "labels", "labels"),  # which refuses what it cannot do
        ([TEXT], "text", "text", "text"),
    ],
)
def test_a_request_that_names_no_model_gets_the_one_that_is_for_it(
    served: list[engine_pb2.GetModelResponse], vectors: str, scores: str, labels: str
) -> None:
    models = ServedModels(4, lambda: [generation_of(model) for model in served])
    for model in served:
        models.add(model, codec())
    chosen = [models.for_new("", suits) for suits in SUITS.values()]
    assert [model and model.limits.name for model in chosen] == [vectors, scores, labels]
    assert models.for_new() == models.for_new(TEXT.model if TEXT in served else served[0].model)


def test_a_reranker_whose_engines_are_away_is_waited_for() -> None:
    taking = [generation_of(VECTORS)]
    models = ServedModels(4, lambda: taking)
    for model in (VECTORS, PAIRS):
        models.add(model, codec())
    assert models.for_new("", SUITS[inference_pb2.ScoreRequest]) is None, "an embedder's scores would be other ones"
    taking.append(generation_of(PAIRS))
    chosen = models.for_new("", SUITS[inference_pb2.ScoreRequest])
    assert chosen is not None
    assert chosen.limits.name == "pairs"


@pytest.mark.parametrize(
    ("missing", "code", "words"),
    [
        (0, Code.NOT_FOUND, "'pairs' is not served here: expected 'text'"),
        (1, Code.UNAVAILABLE, "by the engines that are attached, and 1 is not attached: retry later"),
    ],
)
def test_a_model_may_be_that_of_an_engine_that_is_not_attached_yet(missing: int, code: Code, words: str) -> None:
    models = ServedModels(4, lambda: [generation_of(TEXT)], num_missing_engines=lambda: missing)
    models.add(TEXT, codec())
    model, refused = models.choose("pairs")
    assert model is None
    assert refused is not None
    assert refused.status.code is code
    assert words in refused.status.message
    assert models.for_lookups().choose("text")[1] is None
    other, also_refused = models.for_lookups().choose("pairs")
    assert other.limits.name == "text"
    assert also_refused is not None
    assert also_refused.status == refused.status


@pytest.mark.parametrize("missing", [0, 1])
def test_a_request_without_a_name_waits_for_an_engine_that_may_be_for_it(missing: int) -> None:
    models = ServedModels(4, lambda: [generation_of(VECTORS)], num_missing_engines=lambda: missing)
    models.add(VECTORS, codec())
    model, refused = models.choose("")
    if missing:
        assert refused is not None
        assert refused.status.code is Code.UNAVAILABLE
        assert "1 is not attached: retry later" in refused.status.message
    else:
        assert model is not None, "whoever resolves the request says what the model is for"
    assert models.choose("", suits=SUITS[inference_pb2.EmbedRequest])[0] is not None


def test_a_look_up_without_a_name_is_of_the_model_that_generates() -> None:
    models = ServedModels(4, lambda: [generation_of(VECTORS), generation_of(TEXT)])
    for model in (VECTORS, TEXT):
        models.add(model, codec())
    assert models.for_lookups().choose("")[0].limits.name == "text"


def test_a_look_up_without_any_model_is_retried() -> None:
    with pytest.raises(Refused, match="no engine is attached") as caught:
        ServedModels(4, list).for_lookups()
    assert caught.value.status.code is Code.UNAVAILABLE


def test_what_engines_of_one_model_have_together_and_the_fewest_choices_of_a_step() -> None:
    models, told = ServedModels(4, list), []
    for capabilities, most in (([], 0), ([], 64), ([BEAM_SEARCH], 16), ([], 32)):
        model = served_model().model
        model.capabilities.extend(capabilities)
        model.max_num_seqs = most
        models.add(model, codec())
        (held,) = models.held.values()
        told.append((BEAM_SEARCH in held.capabilities, held.model.max_num_seqs))
    assert told == [(False, 0), (False, 64), (True, 16), (True, 16)]


def test_engines_of_one_digest_must_prepare_pictures_alike() -> None:
    first, same, other, earlier = (served_model().model for _ in range(4))
    for model in (first, same, other):
        model.capabilities.append(MEDIA)
        model.picture_facts = write_facts(FACTS).decode()
    other.picture_facts = write_facts(replace(FACTS, limit=3)).decode()
    models = ServedModels(4, list)
    models.add(first, codec())
    models.add(same, codec())
    (held,) = models.held.values()
    assert held.pictures is not None
    assert MEDIA in held.capabilities
    assert held.pictures.limit == FACTS.limit
    for model in (other, earlier):
        with pytest.raises(LinkRefused, match="prepares pictures otherwise"):
            models.add(model, codec())


def test_facts_of_a_later_release_mean_no_pictures() -> None:
    model = served_model().model
    model.capabilities.append(MEDIA)
    model.picture_facts = '{"architecture": "Later"}'
    models = ServedModels(4, list)
    models.add(model, codec())
    (held,) = models.held.values()
    assert held.pictures is None
    assert MEDIA not in held.capabilities


def test_a_listed_model_says_how_it_samples_by_default_and_how_large_it_is() -> None:
    own = served_model(temperature=0.5, top_k=7)
    own.model.num_parameters = 3_000_000_000
    (model,) = list_models([own]).models
    assert model.num_parameters == 3_000_000_000
    neutral = {"top_p": 1, "min_p": 0, "frequency_penalty": 0, "presence_penalty": 0, "repetition_penalty": 1, "n": 1}
    told = {option.name: value for option, value in model.default_sampling.ListFields()}
    assert told == neutral | {"temperature": 0.5, "top_k": 7}


@pytest.mark.parametrize(
    "constraint",
    [
        {"json_schema": "{" + " " * (MAX_TEXT_BYTES - 2) + "}"},
        {"choice": {"texts": [f"{number:025}" for number in range(MAX_CHOICES)]}},
    ],
    ids=lambda constraint: next(iter(constraint)),
)
def test_a_message_has_room_for_the_largest_constraint_whatever_the_model(constraint: dict[str, Any]) -> None:
    limits = ModelLimits("m", 256, 48, 20)
    request = ask()
    request.constraint.MergeFrom(constraint_pb2.Constraint(**constraint))
    assert parse(inference_pb2.GenerateRequest, request.SerializeToString(), limits.request) == request
