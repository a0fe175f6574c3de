"""The most tokens of reasoning, as the engine gets them: by the ids of the markers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from ringline.engine.v1 import engine_pb2
from ringline.inference.v1 import inference_pb2
from tokenizers import AddedToken
from tokenizers import Tokenizer as HFTokenizer

from services.processor.admission.request_resolution import resolve_request
from services.processor.served_models import ServedModel
from services.ring.errors import Refused
from services.ring.identity import REASONING_BUDGET, PeerId
from tests.services.processor.model_specs import served_model
from text_core.chat_templates import ChatTemplates, TemplateSource
from text_core.tokenizer import Tokenizer

ME = PeerId("p", 1)
TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}{{ '<think>' if thinks else '' }}{# </think> #}"


def reasoning_model(*markers: str, capable: bool = True) -> ServedModel:
    """With ``markers`` as tokens of their own."""
    served = served_model()
    library = HFTokenizer.from_file("checkpoints/tiny/tokenizer.json")
    library.add_tokens([AddedToken(marker) for marker in markers])
    model = engine_pb2.GetModelResponse()
    model.CopyFrom(served.model)
    model.vocab_size = library.get_vocab_size()
    model.capabilities.extend([REASONING_BUDGET] if capable else [])
    return replace(
        served,
        model=model,
        tokenizer=Tokenizer.from_files({"tokenizer.json": library.to_str().encode()}),
        chat=ChatTemplates({"default": TemplateSource(TEMPLATE)}),
        limits=replace(served.limits, vocab_size=model.vocab_size),
    )


def budget_of(served: ServedModel, **request: Any) -> engine_pb2.ReasoningBudget | None:
    chat = {"chat": {"messages": [{"role": "user", "content": "a"}]}}
    fields: dict[str, Any] = {"stopping": {"max_reasoning_tokens": 7}, "output": {"parse": {}}, **chat, **request}
    resolved = resolve_request(inference_pb2.GenerateRequest(**fields), served, "", ME)
    submit = engine_pb2.Submit.FromString(resolved.packed_submit)
    assert (REASONING_BUDGET in submit.requires) == submit.HasField("reasoning_budget")
    assert (REASONING_BUDGET in resolved.needs.engine) == submit.HasField("reasoning_budget")
    admitted = inference_pb2.Admitted.FromString(resolved.packed_admitted)
    assert admitted.stopping.HasField("max_reasoning_tokens") == ("stopping" not in request)
    return submit.reasoning_budget if submit.HasField("reasoning_budget") else None


def test_the_engine_gets_the_markers() -> None:
    served = reasoning_model("<think>", "</think>")
    ids = served.tokenizer.added_tokens()
    budget = budget_of(served)
    assert budget == engine_pb2.ReasoningBudget(max_tokens=7, closing=[ids["</think>"]], opening=[ids["<think>"]])
    text = {"chat": {"messages": [{"role": "user", "content": "a"}], "template_args_json": '{"thinks": true}'}}
    begun = budget_of(served, **text)
    assert begun == engine_pb2.ReasoningBudget(max_tokens=7, closing=[ids["</think>"]])
    assert budget_of(served, stopping={}) is None
    assert budget_of(served, output={"parse": {"reasoning": "none"}}) is None


@pytest.mark.parametrize(
    ("markers", "request_fields", "problem"),
    [
        (("<think>",), {}, "writes </think> in tokens that also stand for other text"),
        (("</think>",), {}, "writes <think> in tokens that also stand for other text"),
        (("<think>", "</think>"), {"output": {}}, "set, but the answer is not divided"),
    ],
)
def test_what_cannot_be_kept_is_refused(markers: tuple[str, ...], request_fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(Refused, match=f"stopping.max_reasoning_tokens: .*{problem}"):
        budget_of(reasoning_model(*markers), **request_fields)


def test_an_older_engine_is_not_asked() -> None:
    with pytest.raises(Refused, match="cannot limit reasoning"):
        budget_of(reasoning_model("<think>", "</think>", capable=False))
