"""The protocol, whole, over a network that loses, repeats, delays and cuts.

Hypothesis chooses who does what next in a ring of two engines and two detokenizers (see ``ring_simulation``).
Engines come back with the model that they had, or with another one, which computes and names other tokens.
At the end everything heals, and every request must have exactly one end per choice, with exactly the ids, text
and log probabilities of an undisturbed run, and nobody may hold anything any more.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from ringline.detokenizer.v1 import detokenizer_pb2
from ringline.inference.v1 import inference_pb2
from structlog.testing import capture_logs

from services.common.rpc.shared_messages import read_logprobs
from services.ring.events import FinishReason
from tests.services.ring.ring_simulation import (
    ALPHABET,
    LARGE,
    NEXT,
    ORPHAN_GRACE,
    PRESENT,
    SERVED,
    VECTORS,
    AttachStream,
    Detokenizer,
    RingSimulation,
    Served,
    logprob_at,
    prompt_logprob_at,
)
from tests.services.ring.token_logprobs import packed, unpacked
from tests.services.streams import Transcript

ENGINES = ("engine-0", "engine-1")
POOLING_ENGINES = ("vectors-0", "vectors-1")
DETOKENIZERS = ("detokenizer-0", "detokenizer-1")
SIZES = st.sampled_from([1, 300, LARGE, LARGE])
ROUNDS_TO_HEAL = 100
PROMPT = "abcabcabcabc"
SCORES = packed(prompt_logprob_at(position, 2) for position in range(1, len(PROMPT)))


def undisturbed(
    request: inference_pb2.GenerateRequest, choice: int, served: Served
) -> tuple[list[int], str, FinishReason, str]:
    """Ids, text, cause and stop string of a choice that nothing happens to."""
    ids: list[int] = []
    stopping = request.stopping
    while len(ids) < stopping.max_tokens:
        ids.append(served.token_at(request.sampling.seed, choice, len(ids)))
        text = served.tokenizer.decode([i for i in ids if i != served.eos or stopping.include_stop_str_in_output])
        found = [stop for stop in stopping.stop if text.endswith(stop)] if ids[-1] != served.eos else []
        if found and len(ids) > stopping.min_tokens:
            stop = max(found, key=len)
            return ids, text if stopping.include_stop_str_in_output else text[: -len(stop)], FinishReason.STOP, stop
        if ids[-1] == served.eos:
            return ids, text, FinishReason.STOP, ""
    return ids, text, FinishReason.LENGTH, ""


class ProtocolMachine(RuleBasedStateMachine):
    """Any link and any life may end, but for the processor's."""

    def __init__(self) -> None:
        super().__init__()
        # How many engines a request may outlive is another test's business: here it outlives any number.
        self.world = RingSimulation(ENGINES, DETOKENIZERS, max_crash_resubmits=1_000_000, pooling=POOLING_ENGINES)
        self.pooled: dict[str, list[str]] = {}
        """Texts of requests for vectors."""
        self.asked: dict[str, inference_pb2.GenerateRequest] = {}
        self.served: dict[str, Served] = {}
        """The model of each request."""
        self.cancelled: set[str] = set()
        self.losses_left = 5  # a request whose frames are lost more often in a row fails, as it should
        self.lossy: set[Detokenizer] = set()

    # What may happen

    @rule(
        n=st.integers(1, 3),
        max_tokens=st.integers(1, 20),
        seed=st.integers(0, 2**32),
        stops=st.lists(st.text(ALPHABET, min_size=1, max_size=4), max_size=2),
        include=st.booleans(),
        logprobs=st.none() | st.integers(0, 3),
        prompt_logprobs=st.booleans(),
    )
    def ask(
        self,
        n: int,
        max_tokens: int,
        seed: int,
        stops: list[str],
        include: bool,
        logprobs: int | None,
        prompt_logprobs: bool,
    ) -> None:
        request = inference_pb2.GenerateRequest(request_id=f"r{len(self.asked)}", text=PROMPT)
        request.sampling.n, request.sampling.seed = n, seed
        request.stopping.max_tokens = max_tokens
        request.stopping.stop.extend(stops)
        request.stopping.include_stop_str_in_output = include
        if logprobs is not None:
            request.output.logprobs = logprobs
        if prompt_logprobs:
            request.output.prompt_logprobs = 2
        self.asked[request.request_id] = request
        resolved = self.world.ask(request).resolved
        self.served[request.request_id] = SERVED[resolved.model.model_digest]

    @rule(texts=st.lists(st.text(ALPHABET, min_size=1, max_size=9), min_size=1, max_size=12))
    def ask_for_vectors(self, texts: list[str]) -> None:
        request = inference_pb2.EmbedRequest(request_id=f"v{len(self.pooled)}")
        request.inputs.extend(inference_pb2.PoolingInput(text=text) for text in texts)
        self.pooled[request.request_id] = texts
        self.world.pool(request)

    @rule(tokens=st.integers(1, 5), max_bytes=SIZES, rounds=st.integers(1, 4))
    def everything_flows(self, tokens: int, max_bytes: int, rounds: int) -> None:
        for _ in range(rounds):
            self.world.flow(tokens, max_bytes)

    @rule(name=st.sampled_from(ENGINES + POOLING_ENGINES), tokens=st.integers(1, 5))
    def compute(self, name: str, tokens: int) -> None:
        self.world.engines[name].core.step(tokens)

    def stream(self, data: st.DataObject) -> AttachStream:
        return data.draw(st.sampled_from(list(self.world.streams())))

    @precondition(lambda self: any(self.world.streams()))
    @rule(data=st.data(), max_bytes=SIZES)
    def engine_writes(self, data: st.DataObject, max_bytes: int) -> None:
        self.stream(data).write(max_bytes)

    @precondition(lambda self: any(self.world.streams()))
    @rule(data=st.data())
    def engine_reads(self, data: st.DataObject) -> None:
        self.stream(data).read_commands()

    @precondition(lambda self: any(self.world.streams()))
    @rule(data=st.data())
    def peer_reads(self, data: st.DataObject) -> None:
        self.stream(data).read()

    @rule(name=st.sampled_from(DETOKENIZERS), max_bytes=SIZES)
    def detokenizer_writes(self, name: str, max_bytes: int) -> None:
        self.world.detokenizers[name].write(max_bytes)

    @rule(name=st.sampled_from(DETOKENIZERS))
    def processor_reads(self, name: str) -> None:
        self.world.processor_reads(self.world.detokenizers[name])

    @rule()
    def client_reads(self) -> None:
        self.world.client_reads()

    @precondition(lambda self: self.world.history)
    @rule(data=st.data())
    def text_comes_again(self, data: st.DataObject) -> None:
        frame = data.draw(st.sampled_from(self.world.history[-5:]))
        self.world.text_output.receive(detokenizer_pb2.TextOutputs.FromString(frame))

    @precondition(lambda self: self.losses_left)
    @rule(name=st.sampled_from(DETOKENIZERS))
    def text_is_lost(self, name: str) -> None:
        if texts := self.world.detokenizers[name].texts:
            self.losses_left -= 1
            texts.popleft()
            self.lossy.add(self.world.detokenizers[name])

    @precondition(lambda self: any(self.world.streams()))
    @rule(data=st.data(), heals=st.booleans())
    def link_breaks(self, data: st.DataObject, heals: bool) -> None:
        self.world.detach(self.stream(data))
        if heals:
            self.world.heal()

    @rule(name=st.sampled_from(DETOKENIZERS), heals=st.booleans())
    def subscription_breaks(self, name: str, heals: bool) -> None:
        self.world.unsubscribe(self.world.detokenizers[name])
        if heals:
            self.world.heal()

    @rule(name=st.sampled_from(ENGINES), served=st.none() | st.sampled_from([PRESENT, NEXT]), heals=st.booleans())
    def engine_dies(self, name: str, served: Served | None, heals: bool) -> None:
        """It comes back with its model, or is replaced by one of another."""
        self.world.kill_engine(name, served)
        if heals:
            self.world.heal()

    @rule(name=st.sampled_from(POOLING_ENGINES), heals=st.booleans())
    def pooling_engine_dies(self, name: str, heals: bool) -> None:
        self.world.kill_engine(name)
        if heals:
            self.world.heal()

    @rule(name=st.sampled_from(DETOKENIZERS), heals=st.booleans())
    def detokenizer_dies(self, name: str, heals: bool) -> None:
        self.world.kill_detokenizer(name)
        if heals:
            self.world.heal()

    @rule(name=st.sampled_from(ENGINES + POOLING_ENGINES + DETOKENIZERS))
    def peer_is_suspected(self, name: str) -> None:
        """It may be alive and well, and goes on to speak."""
        self.world.suspect(name)

    @rule()
    def peers_are_trusted_again(self) -> None:
        self.world.trust()

    @rule()
    def things_heal(self) -> None:
        self.world.heal()

    @rule(seconds=st.floats(0.1, 1.5 * ORPHAN_GRACE))
    def time_passes(self, seconds: float) -> None:
        self.world.pass_time(seconds)

    @precondition(lambda self: self.asked or self.pooled)
    @rule(data=st.data())
    def client_cancels(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.asked | self.pooled)))
        call = self.world.client.find(name)
        if call is not None and not call.finished:
            self.cancelled.add(name)
            self.world.in_flight.end(call, FinishReason.CANCELLED)

    # What must hold

    @invariant()
    def nobody_holds_what_nobody_asked_for(self) -> None:
        for engine in self.world.engines.values():
            assert engine.registry.num_ledgers <= len(self.asked) + len(self.pooled)
        for detokenizer in self.world.detokenizers.values():
            assert detokenizer.engines.num_requests <= len(ENGINES) * len(self.asked)

    def teardown(self) -> None:
        world = self.world
        for detokenizer in self.lossy:  # streams lose nothing but their end; what lay behind it may have come before
            world.unsubscribe(detokenizer)
        for name, served in zip(ENGINES, [PRESENT, NEXT], strict=True):
            if world.engines[name].core.served is not served:  # so that there is one for every request
                world.kill_engine(name, served)
        world.heal()
        world.trust()
        for _ in range(ROUNDS_TO_HEAL):
            world.flow()
            world.client_reads()
            world.pass_time(ORPHAN_GRACE / 10)
            if world.quiet:
                break
        assert world.client.num_live == len(world.in_flight) == 0
        for engine in world.engines.values():
            assert engine.registry.num_ledgers == 0
            assert not engine.core.running
        for detokenizer in world.detokenizers.values():
            assert detokenizer.engines.num_requests == 0
            assert not detokenizer.subscriber.outbox.pending
        for name, transcript in self.read().items():
            for choice in range(self.asked[name].sampling.n):
                self.check(name, choice, transcript)

        self.check_vectors()

    def check_vectors(self) -> None:
        answers: dict[str, list[inference_pb2.GenerateResponse]] = {name: [] for name in self.pooled}
        for response in self.world.received:
            if response.request_id in answers:
                answers[response.request_id].append(response)
        for name, texts in self.pooled.items():
            (answer,) = answers[name]
            if answer.HasField("refused"):
                assert name in self.cancelled, answer
            else:
                assert answer.embedded.values == b"".join(VECTORS.row_of(VECTORS.tokenizer.encode(t)) for t in texts)
                assert answer.embedded.report.usage.prompt_tokens == sum(map(len, texts))

    def read(self) -> dict[str, Transcript]:
        transcripts = {name: Transcript() for name in self.asked}
        for response in self.world.received:
            if response.request_id in self.pooled:
                continue
            asked, transcript = self.asked[response.request_id].output, transcripts[response.request_id]
            transcript.add(response)
            if response.HasField("started"):
                assert response.started.model_digest == self.served[response.request_id].digest
            elif response.HasField("delta"):
                choice = response.delta.choice
                if asked.HasField("prompt_logprobs"):
                    assert transcript.prompt_logprobs is not None
                    assert read_logprobs(transcript.prompt_logprobs) == SCORES, "complete before any delta"
                expected = len(transcript.ids[choice]) if asked.HasField("logprobs") else 0
                assert len(transcript.logprobs[choice]) == expected, "one per id, at every delta"
        for transcript in transcripts.values():
            assert transcript.usage.completion_tokens == sum(map(len, transcript.ids.values()))
            assert transcript.usage.prompt_tokens == len(PROMPT)
        return transcripts

    def check(self, name: str, choice: int, transcript: Transcript) -> None:
        request, end = self.asked[name], transcript.ends[choice]
        ids, text, finish_reason, stop = undisturbed(request, choice, self.served[name])
        found, told = transcript.ids.get(choice, []), transcript.texts.get(choice, "")
        if end.finish_reason == FinishReason.CANCELLED:
            assert name in self.cancelled
            assert found == ids[: len(found)]
            assert text.startswith(told)
        else:
            assert end.finish_reason == finish_reason, end
            assert end.stop_string == stop
            assert found == ids
            assert told == text
        if request.output.HasField("logprobs"):
            alternatives = request.output.logprobs
            scores = packed(logprob_at(i, token, alternatives) for i, token in enumerate(found))
            assert transcript.logprobs.get(choice, []) == unpacked(scores), "bit for bit"


@pytest.mark.long
@pytest.mark.parametrize("examples", [100, pytest.param(300, marks=pytest.mark.wide)])
def test_every_request_ends_as_if_nothing_had_happened(examples: int) -> None:
    limits = settings(
        max_examples=examples, stateful_step_count=60, deadline=None, suppress_health_check=list(HealthCheck)
    )
    with capture_logs():
        run_state_machine_as_test(ProtocolMachine, settings=limits)
