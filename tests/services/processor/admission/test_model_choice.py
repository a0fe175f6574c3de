"""What a request's names mean: a model, an adapter of one, both, or neither; and what a tenant may learn of them."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from ringline.engine.v1 import engine_pb2
from ringline.inference.v1 import inference_pb2
from ringline.types.v1 import pooling_pb2

from services.processor.admission.model_choice import Chosen, ModelChoices
from services.processor.admission.tenant_policy import TenantPolicies
from services.processor.listed_models import list_models
from services.processor.request import Asked
from services.processor.served_models import LookupModels, ServedModels, generation_of
from services.processor.suitability import SUITS, generates
from services.ring.adapters import LONGEST_DOUBT, Adapter, AdapterBook, AdapterState
from services.ring.errors import Code, Reason, Refused
from services.ring.identity import ADAPTERS, POOLING, PeerId
from services.ring.model_generations import Generation
from tests.services.processor.model_specs import codec, served_model

EMBEDS = SUITS[inference_pb2.EmbedRequest]
POLICIES = """\
[tenants.base]
models = ["m"]

[tenants.star]
models = ["m:*"]

[tenants.one]
models = ["m", "m:fr"]

[tenants.bare]
models = ["de"]

[tenants.other]
models = ["m2:*", "other"]

[tenants.given]
models = ["given", "fr"]

[tenants."given alone"]
models = ["given"]
"""


def adapter(name: str, digit: str = "1") -> Adapter:
    return Adapter(name, digit * 64)


def described(name: str, digest: str = "model", *, pools: bool = False) -> engine_pb2.GetModelResponse:
    model = engine_pb2.GetModelResponse()
    model.CopyFrom(served_model().model)
    model.model, model.model_digest = name, digest
    model.capabilities.append(ADAPTERS)
    if pools:
        model.capabilities.append(POOLING)
        model.pooling.tasks.append(pooling_pb2.POOLING_TASK_EMBED)
    return model


class World:
    """A model m with the adapters fr and de, and vectors v with vec and de; both have the alias nick."""

    def __init__(self, tmp_path: Path) -> None:
        self.taking: list[Generation] = []
        self.missing = 0
        self.models = ServedModels(
            4, lambda: self.taking, num_missing_engines=lambda: self.missing, aliases=("nick", "de-model")
        )
        (tmp_path / "tenants.toml").write_text(POLICIES)
        self.policies = TenantPolicies(str(tmp_path / "tenants.toml"))
        self.book = AdapterBook()
        self.choices = ModelChoices(self.models, self.book, self.policies)
        self.lives = 0

    def engine(self, model: engine_pb2.GetModelResponse, *known: Adapter, complete: bool = True) -> PeerId:
        self.lives += 1
        engine = PeerId(f"e{self.lives}", self.lives)
        message = engine_pb2.GetModelResponse()
        message.CopyFrom(model)
        message.name, message.incarnation = engine.name, engine.incarnation
        self.models.add(message, codec())
        self.models.engine_up(engine, message)
        if generation_of(model) not in self.taking:
            self.taking.append(generation_of(model))
        self.book.attached(engine, generation_of(model))
        self.tell(engine, *known, complete=complete)
        return engine

    def tell(self, engine: PeerId, *known: Adapter, complete: bool = True) -> None:
        self.book.told(engine, [(each, AdapterState()) for each in known], complete=complete, now=1 << 40)

    def found(self, asked: Asked, tenant: str = "", **suits: object) -> tuple[str, str]:
        chosen = self.choices.choose(asked, tenant, **suits)  # type: ignore[arg-type]
        assert isinstance(chosen, Chosen), chosen
        name = "" if chosen.adapter is None else f"{chosen.adapter.name} {chosen.adapter.digest[0]}"
        return chosen.model.limits.name, name

    def refused(self, asked: Asked, tenant: str = "") -> tuple[Code, Reason, str]:
        refused = self.choices.choose(asked, tenant)
        assert isinstance(refused, Refused), refused
        return refused.status.code, refused.status.reason, refused.status.message


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    world.engine(described("m"), adapter("fr"), adapter("de", "2"))
    world.engine(described("v", "vectors", pools=True), adapter("vec"), adapter("de", "3"), adapter("nick"))
    return world


@pytest.mark.parametrize(
    ("model", "name", "expected"),
    [
        ("", "", ("m", "")),
        ("m", "", ("m", "")),
        ("m", "fr", ("m", "fr 1")),
        ("", "fr", ("m", "fr 1")),
        ("m:fr", "", ("m", "fr 1")),
        ("m:fr", "fr", ("m", "fr 1")),
        ("fr", "", ("m", "fr 1")),
        ("fr", "fr", ("m", "fr 1")),
        ("nick", "fr", ("m", "fr 1")),
        ("nick:fr", "", ("m", "fr 1")),
        ("vec", "", ("v", "vec 1")),
        ("v:de", "", ("v", "de 3")),
        ("de", "", ("m", "de 2")),  # the request asks for tokens
        ("nick", "", ("m", "")),  # a model's name comes first
        ("v:nick", "", ("v", "nick 1")),
    ],
)
def test_each_way_to_name_an_adapter(world: World, model: str, name: str, expected: tuple[str, str]) -> None:
    assert world.found(Asked(model, name)) == expected
    look_up = world.choices.for_lookup(f"{model}:{name}" if name and "fr" not in model else model, _look_up(world), "")
    assert look_up.limits.name == expected[0]


def _look_up(world: World) -> LookupModels:
    return world.models.for_lookups()


def test_a_request_for_vectors_gets_the_adapter_of_the_model_that_makes_them(world: World) -> None:
    assert world.found(Asked("de"), suits=EMBEDS) == ("v", "de 3")


def test_a_name_that_several_models_have_is_refused_with_what_to_say(world: World) -> None:
    world.engine(described("m2", "another"), adapter("fr", "4"))
    world.taking = [generation_of(described("m")), generation_of(described("m2", "another"))]
    code, _, message = world.refused(Asked("fr"))
    assert code is Code.INVALID_ARGUMENT
    assert message == "model: 'fr' is an adapter of several models: expected m:fr or m2:fr"
    assert world.found(Asked("m2:fr")) == ("m2", "fr 4")
    assert world.found(Asked("fr"), "one") == ("m", "fr 1"), "of those that the tenant may use"


@pytest.mark.parametrize(
    ("model", "name", "code", "reason", "words"),
    [
        ("zz", "", Code.NOT_FOUND, Reason.MODEL_NOT_FOUND, "'de-model', or an adapter such as 'de', 'fr', "),
        ("zz:fr", "", Code.NOT_FOUND, Reason.MODEL_NOT_FOUND, "'zz:fr' is not served here"),
        ("zz", "fr", Code.NOT_FOUND, Reason.MODEL_NOT_FOUND, "'zz' is not served here"),
        ("m:zz", "", Code.NOT_FOUND, Reason.ADAPTER_NOT_FOUND, "'m' has no adapter 'zz': expected one such as 'de', "),
        ("m", "zz", Code.NOT_FOUND, Reason.ADAPTER_NOT_FOUND, "'m' has no adapter 'zz': expected one such as 'de', "),
        ("", "zz", Code.NOT_FOUND, Reason.ADAPTER_NOT_FOUND, "there is no adapter 'zz': expected one such as 'de', "),
        ("m:fr", "de", Code.INVALID_ARGUMENT, Reason.INVALID_FIELD, "'de', and model names another, 'fr'"),
        ("fr", "de", Code.INVALID_ARGUMENT, Reason.INVALID_FIELD, "'de', and model names another, 'fr'"),
    ],
)
def test_names_that_mean_nothing(world: World, model: str, name: str, code: Code, reason: Reason, words: str) -> None:
    found = world.refused(Asked(model, name))
    assert found[:2] == (code, reason)
    assert words in found[2]


def test_an_engine_without_adapters_says_how_it_gets_them(world: World) -> None:
    plain = described("plain", "plain")
    del plain.capabilities[:]
    world.engine(plain)
    message = world.refused(Asked("plain", "fr"))[2]
    assert message == "model: 'plain' has no adapter 'fr': its engines serve none (--enable-lora)"


PERMITTED = {
    "base": ["m"],
    "star": ["m:de", "m:fr"],
    "one": ["m", "m:fr"],
    "bare": ["m:de", "v:de"],
    "other": [],
    "anyone": ["m", "m:de", "m:fr", "v", "v:de", "v:nick", "v:vec"],
}


@pytest.mark.parametrize("tenant", PERMITTED)
def test_a_tenant_gets_what_its_policy_names_and_hears_of_nothing_else(world: World, tenant: str) -> None:
    every = PERMITTED["anyone"]
    for name in every:
        outcome = world.choices.choose(Asked(name), tenant, EMBEDS if name.startswith("v") else generates)
        if name in PERMITTED[tenant]:
            assert isinstance(outcome, Chosen), name
        else:
            assert isinstance(outcome, Refused), name
    for absent in ("m:zz", "v:zz", "zz"):
        _, _, message = world.refused(Asked(absent), tenant)
        permitted = {name.partition(":")[2] for name in PERMITTED[tenant]}
        assert not [word for word in ("fr", "de", "vec") if f"'{word}'" in message and word not in permitted]
    served = world.models.served()
    policy = world.policies.of(tenant)
    listed = list_models(served, lambda model: world.choices.adapters_of(model, policy), policy.permits).models
    names = [model.name for model in listed if model.name not in ("nick", "de-model")]
    with_adapters = [f"{one.name}:{each.name}" for one in listed if ":" not in one.name for each in one.adapters]
    assert sorted({*names, *with_adapters}) == PERMITTED[tenant]


def test_an_adapter_that_a_tenant_may_not_use_is_answered_like_one_that_is_not_there(world: World) -> None:
    for tenant in ("base", "other", "star", "bare"):
        for hidden, absent in ((Asked("vec"), Asked("abc")), (Asked("v:vec"), Asked("v:abc"))):
            one, other = world.refused(hidden, tenant), world.refused(absent, tenant)
            assert one == (*other[:2], other[2].replace("abc", "vec"))
    with pytest.raises(Refused) as hidden_look_up:
        world.choices.for_lookup("vec", _look_up(world), "one")
    with pytest.raises(Refused) as absent_look_up:
        world.choices.for_lookup("abc", _look_up(world), "one")
    assert str(hidden_look_up.value) == str(absent_look_up.value).replace("abc", "vec")


def test_an_adapter_is_waited_for_while_engines_may_still_tell_of_it(tmp_path: Path) -> None:
    world = World(tmp_path)
    assert world.refused(Asked("fr"))[0] is Code.UNAVAILABLE, "no model is known"
    engine = world.engine(described("m"), complete=False)
    for asked in (Asked("fr"), Asked("m:fr"), Asked("", "fr")):
        assert world.choices.choose(asked, "") is None
    assert world.found(Asked("m")) == ("m", ""), "others need not wait"
    world.tell(engine, adapter("fr"))
    assert world.found(Asked("fr")) == ("m", "fr 1")
    assert world.refused(Asked("m:zz"))[1] is Reason.ADAPTER_NOT_FOUND
    world.missing = 1
    code, _, message = world.refused(Asked("m:zz"))
    assert code is Code.UNAVAILABLE
    assert message.endswith("have no adapter 'zz', and 1 is not attached: retry later")
    world.taking.clear()
    assert world.choices.choose(Asked("fr"), "") is None, "no engine takes work"


def test_an_adapter_that_is_being_replaced_is_waited_for(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine could not load it, and has not told of the next one yet."""
    engine, other = world.engine(described("m"), adapter("es")), world.engine(described("m"), adapter("es"))
    world.book.missed(engine, adapter("es"), is_new=True, at=time.monotonic())
    assert world.found(Asked("es")) == ("m", "es 1"), "another engine has it"
    world.book.missed(other, adapter("es"), is_new=True, at=time.monotonic())
    for asked in (Asked("es"), Asked("m:es"), Asked("", "es")):
        assert world.choices.choose(asked, "") is None
    assert world.refused(Asked("m:es"), "other")[1] is Reason.ADAPTER_NOT_FOUND, "this tenant may not use it"
    assert world.refused(Asked("v:es"))[1] is Reason.ADAPTER_NOT_FOUND, "another model's"
    world.tell(engine, adapter("es", "2"))
    assert world.found(Asked("es")) == ("m", "es 2")
    world.book.missed(engine, adapter("es", "2"), is_new=True, at=time.monotonic())
    later = time.monotonic() + LONGEST_DOUBT
    monkeypatch.setattr(time, "monotonic", lambda: later)
    assert world.refused(Asked("m:es"))[1] is Reason.ADAPTER_NOT_FOUND, "nothing was told in time"


def test_a_rollout_sends_requests_to_the_generation_that_has_the_adapter(world: World) -> None:
    newer = described("m", "newer")
    world.engine(newer, adapter("es", "5"))
    world.taking.insert(0, world.taking.pop())
    assert world.found(Asked("m:fr")) == ("m", "fr 1")
    chosen = world.choices.choose(Asked("m:es"), "")
    assert isinstance(chosen, Chosen)
    assert chosen.model.model.model_digest == "newer"


def _digests(outcome: Chosen | Refused | None) -> tuple[str, str] | None:
    if outcome is None:
        return None
    assert isinstance(outcome, Chosen), outcome
    assert outcome.adapter is not None
    return outcome.model.model.model_digest, outcome.adapter.digest[0]


def test_a_resume_gets_the_adapter_that_it_began_with_or_waits(world: World) -> None:
    engine = world.engine(described("m"), adapter("fr"))
    world.book.told(
        engine,
        [(adapter("fr"), AdapterState(current=False)), (adapter("fr", "9"), AdapterState())],
        complete=True,
        now=1 << 41,
    )
    assert world.found(Asked("m:fr")) == ("m", "fr 9"), "new requests take the one that replaced it"

    def resumed(name: str = "fr", digit: str = "1", model: str = "m", digest: str = "model") -> Asked:
        return Asked(model, name, digest, digit * 64)

    assert _digests(world.choices.choose(resumed(), "")) == ("model", "1")
    assert _digests(world.choices.choose(resumed(digit="9"), "")) == ("model", "9")
    assert _digests(world.choices.choose(resumed("", model="m:fr"), "")) == ("model", "1")
    assert world.choices.choose(resumed(digit="7"), "") is None
    assert world.choices.choose(resumed("zz", digit="7"), "") is None
    assert world.choices.choose(resumed("", model="zz", digit="7"), "") is None
    assert world.choices.choose(resumed(digest="another model"), "") is None
    code, reason, _ = world.refused(resumed(), "base")
    assert (code, reason) == (Code.NOT_FOUND, Reason.ADAPTER_NOT_FOUND)
    assert world.refused(Asked("m", "", "model", "1" * 64))[2].startswith("resume.adapter_digest: set, but")
    assert world.refused(Asked("m", "fr", "model", "1"))[2].startswith("resume.adapter_digest: expected the 64")
    nothing_delivered = Asked("m", "fr", "model")
    assert _digests(world.choices.choose(nothing_delivered, "")) == ("model", "9"), "nothing binds it"


def test_a_resume_gets_the_adapter_under_another_name_that_the_tenant_may_use(world: World) -> None:
    """As when a name was given by a call, of which engines that were started since know nothing."""
    resumed = Asked("m", "given", "model", "1" * 64)
    assert world.found(resumed) == ("m", "fr 1")
    assert world.found(resumed, "given") == ("m", "fr 1")
    assert world.choices.choose(resumed, "given alone") is None


def test_what_an_adapter_chosen_is_gone_from_is_told(world: World) -> None:
    chosen = world.choices.choose(Asked("fr"), "")
    assert isinstance(chosen, Chosen)
    assert not world.choices.is_gone(chosen)
    world.book.detached(PeerId("e1", 1))
    assert world.choices.is_gone(chosen)
