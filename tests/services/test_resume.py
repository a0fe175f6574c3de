"""A request that is cut anywhere and goes on is the request that was not cut: same ids, text, log probabilities, end.

Each is asked once, whole; then for every place between two of its deltas, the rest is asked for as a client would that
had lost its processor there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from ringline.inference.v1 import inference_pb2
from ringline.types.v1 import constraint_pb2, output_pb2, part_pb2, sampling_pb2

from services.common.rpc.shared_messages import read_logprobs
from tests.ring import MODEL
from tests.services.ring.token_logprobs import unpacked
from tests.services.streams import Transcript, ask, generate, read_session, send
from text_core.tokenizer import Tokenizer

GenerateRequest = inference_pb2.GenerateRequest


def asked(**fields: Any) -> GenerateRequest:
    """A request for a sampled continuation, with log probabilities, changed as a case wants it."""
    usual = {"max_tokens": 20, "temperature": 0.9, "seed": 3, "ignore_eos": True, "logprobs": 2}
    return ask(**(usual | {"return_prompt_token_ids": True} | fields))


TOKENIZER = Tokenizer.from_directory(MODEL)
BIG = TOKENIZER.encode(" big", add_special_tokens=False)
BYTES = sorted(set(TOKENIZER.encode("é€😀x", add_special_tokens=False)))
"""Most of them a byte, which is no character by itself."""

QUESTION = inference_pb2.Chat(messages=[inference_pb2.ChatMessage(role="user", content="What is 3 plus 4?")])
CHAT = {"chat": QUESTION, "temperature": 0.0, "ignore_eos": False, "max_tokens": 60}
"""An answer that the model ends by itself."""
BROKEN_CHARACTERS = {"allowed_token_ids": BYTES, "temperature": 100.0, "max_tokens": 40}
"""Output of bytes that sometimes make a character, and often do not."""
ENDS_IN_A_STOP_STRING = {"stop_token_ids": BIG, "stop": [TOKENIZER.decode(BIG), "x big"]}
"""A stop token and a stop string are one and the same; before it are parts of others."""

CALL = constraint_pb2.Constraint()
"""A call of a tool, as Hermes writes it, and whatever the model says after it."""
CALL.structural_tags.required = True
CALL.structural_tags.tags.add(
    begin='<tool_call>{"name": "add", "arguments": ',
    json_schema='{"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}',
    end="}</tool_call>",
)
THOUGHT = constraint_pb2.Constraint(regex="I [a-z ]{0,9}(é|€)</think>[a-z ]{4,20}é", after_reasoning=False)

CASES = {
    "greedy": asked(temperature=0.0),
    "sampled": asked(),
    "truncated sampling": asked(top_k=20, top_p=0.9, min_p=0.01),
    "two choices": asked(n=2),
    "five choices of a chat": asked(**(CHAT | {"temperature": 0.9}), n=5),
    "penalties": asked(frequency_penalty=1.0, presence_penalty=0.5, repetition_penalty=1.3),
    "the model's own end": asked(**CHAT),
    "an end that comes late": asked(**CHAT, min_tokens=40),
    "a stop token": asked(stop_token_ids=BIG),
    "a stop token that is a stop string": asked(**ENDS_IN_A_STOP_STRING),
    "some of them, and limits": asked(**ENDS_IN_A_STOP_STRING, n=5),
    "a stop token that is a stop string left in": asked(**ENDS_IN_A_STOP_STRING, include_stop_str_in_output=True),
    "an end that is a stop string": asked(**CHAT, skip_special_tokens=False, stop=["<|im_end|>"]),
    "bad words": asked(bad_words=["the", "a little", "e"]),
    "a stop string": asked(stop=["ra lived in", "x"]),
    "a stop string left in": asked(stop=["ra lived in", "x"], include_stop_str_in_output=True),
    "a stop string that comes late": asked(stop=["a", "e"], min_tokens=12),
    "stop strings that only begin": asked(stop=[first + "\u0001" for first in "abcdefghijklmnopqrstuvwxyz ,."]),
    "one token": asked(max_tokens=1),
    "a constraint": asked(constraint=constraint_pb2.Constraint(regex="(é|€|[a-f ]){5,20}"), n=2),
    "a call of a tool": asked(constraint=CALL, parse=part_pb2.ParseParams(tool_names=["add"]), max_tokens=60, n=2),
    "reasoning": asked(constraint=THOUGHT, parse=part_pb2.ParseParams(reasoning="think", begins_in_reasoning=True)),
    "special tokens in the text": asked(skip_special_tokens=False),
    "log probabilities of the prompt": asked(prompt_logprobs=1),
    "characters of several tokens": asked(**BROKEN_CHARACTERS),
    "more of them": asked(**BROKEN_CHARACTERS, seed=4, n=4),
    "beams": ask(n=3, max_tokens=20, return_prompt_token_ids=True, beam_search=sampling_pb2.BeamSearch(width=4)),
    "a stop string after them": asked(**BROKEN_CHARACTERS, stop=["x\ufffd", "xx"], seed=5, n=4),
}


@dataclass(frozen=True)
class Cut:
    """A place where a request was cut: how many deltas of each choice came, and which choices had ended."""

    deltas: tuple[int, ...]
    ended: frozenset[int] = frozenset()


def cuts_of(whole: Transcript) -> Iterator[Cut]:
    """Every place of each choice, the choices out of step; where all came, with and without its end."""
    counts = [len(whole.deltas.get(choice, ())) for choice in range(len(whole.ends))]
    for step in range(max(counts) + 1):
        deltas = tuple((step + 3 * choice) % (count + 1) for choice, count in enumerate(counts))
        yield Cut(deltas)
        ended = frozenset(choice for choice, count in enumerate(deltas) if count == counts[choice])
        if ended and len(ended) < len(counts):
            yield Cut(deltas, ended)
    if len(counts) > 1:
        yield Cut(tuple(counts))


def until(whole: Transcript, cut: Cut) -> Transcript:
    """What had come of a request."""
    had = Transcript(started=whole.started)
    for choice, count in enumerate(cut.deltas):
        for delta in whole.deltas.get(choice, ())[:count]:
            had.ids.setdefault(choice, []).extend(delta.token_ids)
            had.texts[choice] = had.texts.get(choice, "") + delta.text
            had.add_parts(choice, delta.parts)
            had.logprobs.setdefault(choice, []).extend(unpacked(read_logprobs(delta.logprobs)))
    return had


def rest_of(name: str, whole: Transcript, had: Transcript, cut: Cut) -> GenerateRequest:
    """The request that goes on, made from what a client has."""
    taken = whole.admitted
    rest = GenerateRequest(
        request_id=name, sampling=taken.sampling, stopping=taken.stopping, output=taken.output, model=taken.model
    )
    rest.token_ids.ids.extend(taken.prompt_token_ids)
    if taken.HasField("constraint"):
        rest.constraint.CopyFrom(taken.constraint)
    if taken.HasField("beam_search"):
        rest.beam_search.CopyFrom(taken.beam_search)
    for choice in set(whole.ends) - cut.ended:
        rest.resume.choices.add(choice=choice, token_ids=had.ids.get(choice, ()))
    if had.started:
        rest.resume.model_digest, rest.resume.numerics = had.started[-1].model_digest, had.started[-1].numerics
    return rest


@pytest.mark.parametrize("request_", CASES.values(), ids=CASES)
async def test_it_goes_on_as_if_it_had_not_been_cut(front, request_: GenerateRequest) -> None:
    whole = await generate(front, request_)
    cuts = {f"{number}: {cut}"[:100]: cut for number, cut in enumerate(cuts_of(whole))}
    call = front.Session(timeout=250)
    seen = {}
    for name, cut in cuts.items():
        had = seen[name] = until(whole, cut)
        await send(call, rest_of(name, whole, had, cut))
    for name, rest in (await read_session(call, cuts, seen)).items():
        for choice, end in whole.ends.items():
            if choice in cuts[name].ended:
                assert choice not in rest.ends, name
                continue
            assert rest.ids.get(choice) == whole.ids.get(choice), name
            assert rest.texts.get(choice) == whole.texts.get(choice), name
            assert rest.logprobs.get(choice) == whole.logprobs.get(choice), name
            assert rest.parts.get(choice) == whole.parts.get(choice), name
            assert rest.ends[choice].reasoning_tokens == end.reasoning_tokens, name
            assert rest.ends[choice].finish_reason == end.finish_reason, name
            assert rest.ends[choice].beam_score == end.beam_score, name
            assert rest.ends[choice].WhichOneof("stop") == end.WhichOneof("stop"), name
            assert (rest.ends[choice].stop_string, rest.ends[choice].stop_token_id) == (
                end.stop_string,
                end.stop_token_id,
            ), name
        assert rest.admitted.sampling == whole.admitted.sampling, name
        assert rest.admitted.stopping == whole.admitted.stopping, name
        assert rest.admitted.output == whole.admitted.output, name
        assert rest.admitted.constraint == whole.admitted.constraint, name
        if rest.deltas:  # with nothing left to compute, nothing is said of the prompt either
            assert rest.prompt_logprobs == whole.prompt_logprobs, name
        assert rest.usage.prompt_tokens == whole.usage.prompt_tokens, name
        assert rest.usage.cached_tokens <= rest.usage.prompt_tokens, name
        listed = [len(ids) for choice, ids in whole.ids.items() if choice not in cuts[name].ended]
        assert rest.usage.completion_tokens == sum(listed), name
    call.cancel()


async def test_the_cases_show_what_they_are_for(front) -> None:
    """Each kind of end is among them, text that was held back, and characters that were not finished."""
    transcripts = {name: await generate(front, request) for name, request in CASES.items()}
    ends = [end for one in transcripts.values() for end in one.ends.values()]
    assert {end.finish_reason for end in ends} == {output_pb2.FINISH_REASON_STOP, output_pb2.FINISH_REASON_LENGTH}
    assert {end.WhichOneof("stop") for end in ends} == {None, "stop_string", "stop_token_id"}
    together = [
        len(delta.token_ids) for one in transcripts.values() for deltas in one.deltas.values() for delta in deltas
    ]
    assert max(together) > 1
    texts = {name: "".join(one.texts.values()) for name, one in transcripts.items()}
    assert "\ufffd" in texts["characters of several tokens"] + texts["more of them"]
    assert set("é€😀") & set(texts["characters of several tokens"] + texts["more of them"])
    for name in ("a stop string", "a stop string left in", "a stop string that comes late", "a stop string after them"):
        assert any(end.HasField("stop_string") for end in transcripts[name].ends.values()), name
    assert transcripts["an end that comes late"].usage.completion_tokens >= 40
    for name in (
        "the model's own end",
        "a stop token",
        "a stop token that is a stop string",
        "an end that is a stop string",
    ):
        assert transcripts[name].ends[0].HasField("stop_token_id"), name
    kind, _, call_id, call_name, arguments = transcripts["a call of a tool"].parts[0][0]
    assert (kind, call_name) == ("tool_call", "add")
    assert call_id.startswith("call_")
    assert json.loads(arguments)["a"]
    assert [part[0] for part in transcripts["reasoning"].parts[0]] == ["reasoning", "content"]
    assert transcripts["reasoning"].usage.reasoning_tokens > 5
