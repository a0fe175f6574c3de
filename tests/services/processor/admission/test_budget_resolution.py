"""The most tokens of reasoning, as the engine gets them: by the ids of the markers."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from ringline.engine.v1 import engine_pb2
from ringline.inference.v1 import inference_pb2
from tokenizers import AddedToken
from tokenizers import Tokenizer as HFTokenizer

from engine_core.request import ReasoningBudget
from engine_core.sampling.reasoning_budget import forced_and_banned
from services.engine.engine_messages import _budget_of
from services.processor.admission.request_resolution import resolve_request
from services.processor.checked_grammars import CheckedGrammars
from services.processor.served_models import ServedModel
from services.ring.errors import Refused
from services.ring.identity import CONSTRAINT, REASONING_BUDGET, PeerId
from tests.services.processor.model_specs import served_model
from tests.text_core.grammar.matching import Compiled, checker
from text_core.answer_grammar import AnswerForm, ToolCalls, answer_grammar
from text_core.chat_templates import ChatTemplates, TemplateSource
from text_core.grammar.checker import GrammarChecker
from text_core.incremental_decoder import IncrementalDecoder
from text_core.parsing import harmony, think
from text_core.parsing.answer_gate import AnswerGate
from text_core.parsing.formats import REASONING_FORMATS
from text_core.parsing.parts import ParseOptions
from text_core.parsing.tool_grammar import ToolSpec
from text_core.tokenizer import Tokenizer

ME = PeerId("p", 1)
TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}{{ '<think>' if thinks else '' }}{# </think> #}"


def reasoning_model(*markers: str, capable: bool = True, special: bool = False) -> ServedModel:
    """With ``markers`` as tokens of their own."""
    served = served_model()
    library = HFTokenizer.from_file("checkpoints/tiny/tokenizer.json")
    library.add_tokens([AddedToken(marker, special=special) for marker in markers])
    model = engine_pb2.GetModelResponse()
    model.CopyFrom(served.model)
    model.vocab_size = library.get_vocab_size()
    model.capabilities.extend([CONSTRAINT, *([REASONING_BUDGET] if capable else [])])
    tokenizer = Tokenizer.from_files({"tokenizer.json": library.to_str().encode()})
    return replace(
        served,
        model=model,
        tokenizer=tokenizer,
        grammars=CheckedGrammars(GrammarChecker(tokenizer, model.vocab_size, model.eos_token_ids)),
        chat=ChatTemplates({"default": TemplateSource(TEMPLATE)}),
        limits=replace(served.limits, vocab_size=model.vocab_size, max_model_len=512),
    )


def budget_of(served: ServedModel, **request: Any) -> engine_pb2.ReasoningBudget | None:
    chat = {"chat": {"messages": [{"role": "user", "content": "a"}]}}
    fields: dict[str, Any] = {"stopping": {"max_reasoning_tokens": 7}, "output": {"parse": {}}, **chat, **request}
    resolved = resolve_request(inference_pb2.GenerateRequest(**fields), served, "", ME)
    submit = engine_pb2.Submit.FromString(resolved.packed_submit)
    assert (REASONING_BUDGET in submit.requires) == submit.HasField("reasoning_budget")
    assert (REASONING_BUDGET in resolved.needs.engine) == submit.HasField("reasoning_budget")
    admitted = inference_pb2.Admitted.FromString(resolved.packed_admitted)
    assert admitted.stopping.max_reasoning_tokens == fields["stopping"].get("max_reasoning_tokens", 0)
    return submit.reasoning_budget if submit.HasField("reasoning_budget") else None


def test_the_engine_gets_the_markers() -> None:
    served = reasoning_model("<think>", "</think>")
    ids = served.tokenizer.added_tokens()
    budget = budget_of(served)
    blank = served.tokenizer.white_space_ids
    markers = {"closing": [ids["</think>"]], "opening": [ids["<think>"]]}
    assert budget == engine_pb2.ReasoningBudget(max_tokens=7, blank=blank, **markers)
    assert len(blank) > 5
    text = {"chat": {"messages": [{"role": "user", "content": "a"}], "template_args_json": '{"thinks": true}'}}
    begun = budget_of(served, **text)
    assert begun == engine_pb2.ReasoningBudget(max_tokens=7, blank=blank, begun=True, **markers)
    assert budget_of(served, stopping={}) is None
    assert budget_of(served, output={"parse": {"reasoning": "none"}}) is None


def test_reasoning_may_begin_again_where_its_marker_is_special() -> None:
    """As the parser of the answer has it."""
    served = reasoning_model("<think>", "</think>", special=True)
    for begun in (True, False):
        budget = budget_of(served, output={"parse": {"begins_in_reasoning": begun}})
        assert budget is not None
        assert list(budget.again) == [served.tokenizer.added_tokens()["<think>"]]
        assert (budget.opening, budget.begun) == (budget.again, begun)
    plain = budget_of(reasoning_model("</think>"), output={"parse": {"begins_in_reasoning": True}})
    assert plain is not None
    assert not plain.opening, "no token begins it"
    assert not plain.again


def test_a_budget_larger_than_the_context_is_no_limit() -> None:
    served = reasoning_model("<think>", "</think>")
    budget = budget_of(served, stopping={"max_reasoning_tokens": 2**32 - 1})
    assert budget is not None
    assert budget.max_tokens == served.limits.max_model_len


def test_a_form_begins_where_the_reasoning_is_ended() -> None:
    served = reasoning_model("<think>", "</think>")
    begun = {"output": {"parse": {"begins_in_reasoning": True}}}
    assert budget_of(served, **begun, constraint={"json_object": True}) == budget_of(served, **begun)
    bound = {"json_object": True, "after_reasoning": False}
    with pytest.raises(Refused, match=r"max_reasoning_tokens: set, but the form .* includes its reasoning"):
        budget_of(served, **begun, constraint=bound)
    assert budget_of(served, constraint=bound) == budget_of(served)


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("name", think.REASONING_FORMATS)
def test_an_engine_counts_what_a_parser_calls_reasoning(name: str, special: bool) -> None:
    """In answers of any text and markers: nothing is forced elsewhere."""
    form, random_ = REASONING_FORMATS[name], random.Random(7)
    served = reasoning_model(*form.markers, special=special)
    opening, closing, *texts = (
        served.tokenizer.encode(text, add_special_tokens=False)
        for text in (form.opening, form.closing, *"abc.", "\n", " ", "\n\n")
    )
    for begun in (True, False) * 100:
        parse = {"reasoning": name, "begins_in_reasoning": begun}
        most = random_.choice([0, 1, 2, 9])
        resolved = budget_of(served, stopping={"max_reasoning_tokens": most}, output={"parse": parse})
        assert resolved is not None
        pieces = random_.choices([opening, closing, *texts], [3, 3] + [2] * len(texts), k=40)
        drawn = random_.choice([[], opening]) + [token for piece in pieces for token in piece]
        output, starts = keep(_budget_of(resolved), drawn)
        gate = AnswerGate(served.tokenizer, ParseOptions(**parse), skip_special_tokens=True)
        decoder = IncrementalDecoder(served.tokenizer.pieces(), ())
        for at, token in enumerate(output):
            assert at not in starts or not gate.is_open, served.tokenizer.decode(output[:at], skip_special_tokens=False)
            gate.push(token, decoder.push(token))


def keep(budget: ReasoningBudget, drawn: list[int]) -> tuple[list[int], set[int]]:
    """The output, where a model would draw these tokens; where the end of reasoning is forced, if there was any."""
    output: list[int] = []
    starts = set()
    for token in drawn:
        forced, banned = forced_and_banned(budget, output)
        if forced == budget.closing[0] and budget.max_tokens:
            starts.add(len(output))
        if forced is not None or token != banned:
            output.append(token if forced is None else forced)
    return output, starts


@pytest.mark.parametrize("mode", ["MODE_REQUIRED", "MODE_AUTO"])
def test_messages_in_channels_are_ended_where_calls_may_follow(mode: str) -> None:
    """What is forced is what the grammar of calls admits."""
    served = reasoning_model(*harmony.MARKERS, special=True)
    tools = [{"name": "f", "parameters_json": '{"properties": {"a": {"type": "integer"}}}', "strict": True}]
    messages = [{"role": "user", "content": "a"}]
    chat = {"messages": messages, "tools": tools, "tool_choice": {"mode": mode}}
    parse = {"tool_calls": "harmony", "reasoning": "harmony"}
    budget = budget_of(served, chat=chat, output={"parse": parse})
    assert budget is not None
    opening, closing = (
        served.tokenizer.decode(ids, skip_special_tokens=False) for ids in (budget.opening, budget.closing)
    )
    assert opening == "<|channel|>analysis<|message|>"
    assert budget.again == budget.opening
    required = mode == "MODE_REQUIRED"
    assert closing == "<|end|><|start|>assistant<|channel|>" + ("commentary" if required else "")
    tool = ToolSpec("f", {"properties": {"a": {"type": "integer"}}}, strict=True)
    form = AnswerForm(ToolCalls((tool,), required), True, "harmony", tool_calls="harmony")
    compiled, call = Compiled(answer_grammar(form, checker().marker)), ' to=functions.f<|message|>{"a": 1}'
    for rest in [call] if required else ["final<|message|>Hello", f"commentary{call}"]:
        assert compiled.accepts(f"{opening}so{closing}{rest}")


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
