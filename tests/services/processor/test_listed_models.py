"""What ListModels answers, and when an answer is made anew."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

from ringline.inference.v1 import inference_pb2 as pb

from services.processor.admission.model_choice import ModelChoices
from services.processor.admission.tenant_policy import TenantPolicies, TenantPolicy
from services.processor.listed_models import ListedModels
from services.ring.adapters import Adapter, AdapterBook, AdapterState
from services.ring.identity import PeerId
from tests.services.processor.model_specs import served_model

ENGINE = PeerId("e", 1)
ONE, OTHER = Adapter("a", "1" * 64), Adapter("a", "2" * 64)
ALL, SOME = TenantPolicy(), TenantPolicy(models=frozenset(["m:a"]))


def test_an_answer_is_made_when_models_or_adapters_have_changed() -> None:
    book, served = AdapterBook(), [served_model()]
    models = SimpleNamespace(served=lambda: [*served])
    listed = ListedModels(models, ModelChoices(models, book, TenantPolicies(None)))  # type: ignore[arg-type]
    generation = served[0].generation
    book.attached(ENGINE, generation)

    def told(*states: tuple[Adapter, AdapterState]) -> None:
        book.told(ENGINE, states, complete=True, now=2)

    def names(policy: TenantPolicy) -> list[tuple[str, list[str]]]:
        answer = pb.ListModelsResponse.FromString(listed.answer(policy))
        return [(model.name, [each.digest[0] for each in model.adapters]) for model in answer.models]

    assert (names(ALL), names(SOME)) == ([("m", [])], [])
    told((ONE, AdapterState()))
    assert (names(ALL), names(SOME)) == ([("m", ["1"])], [("m:a", ["1"])])
    answer = listed.answer(ALL)
    told((ONE, AdapterState(loaded=True)))
    assert listed.answer(ALL) is answer
    told((OTHER, AdapterState()), (ONE, AdapterState(current=False)))
    assert names(ALL) == [("m", ["2"])]
    served.append(replace(served[0], limits=replace(served[0].limits, name="other")))
    assert [name for name, _ in names(ALL)] == ["m", "other"]
    book.detached(ENGINE)
    assert names(SOME) == []
    for number in range(100):
        listed.answer(TenantPolicy(max_queued_tokens=number))
    assert len(listed._answers) == 16
