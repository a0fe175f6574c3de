"""An executor without a model whose "keys and values" are hashes, so that every wrong block shows.

What it stores for a position is a hash of all tokens up to there, made from what it *reads* for the position before;
what it draws is a function of what it stored last. A block that is shared wrongly, freed while in use or not computed
changes the tokens, and is reported before that by the checks made of every plan. Every group of the cache stores the
same, and of a group with a window only what the window shows is read. A state of a sequence is the hash of all its
tokens so far. A picture's "embeddings" are its pixels, which go into the hash of each of its positions.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from math import inf

from engine_core.beam_search import Beam, Candidates, Search
from engine_core.config import ModelSpec, SchedulerConfig, encoder_portion_tokens
from engine_core.executor.base import Executor
from engine_core.kv_cache_interface import NO_BLOCK, NO_STATE, KVCacheConfig, first_seen
from engine_core.logprobs import Logprobs, TokenLogprobs
from engine_core.media import Picture, PictureShape, View, embedding_key
from engine_core.request import Finish, FinishReason, Request, SamplingParams
from engine_core.step import EncoderPortion, Failure, Fork, NewSequence, StepPlan, StepResult

EOS = 1


def model_spec(vocab_size=40, max_model_len=64, vision=None):
    return ModelSpec(
        name="hashes",
        architecture="HashForCausalLM",
        vocab_size=vocab_size,
        max_model_len=max_model_len,
        eos_token_ids=(EOS,),
        dtype="float32",
        vision=vision,
    )


def make_picture(number: int, num_tokens: int) -> Picture:
    """Pictures of different numbers differ."""
    return Picture.of(PictureShape(num_tokens), [View(1, 1, bytes([number, 0, 0]))])


def failing(position: int, choice: int = 0) -> str:
    """A "grammar" with which ``choice`` fails instead of drawing the token at ``position`` (or a later one, if it is
    resumed behind it); at −1: in the first step that computes anything of it. At even positions that is known as soon
    as the token before is drawn.
    """
    return f"{choice} fails at {position}"


def fails_at(params: SamplingParams, choice: int) -> int | None:
    words = (params.grammar or "").split()
    return int(words[-1]) if words and words[0] == str(choice) else None


def digest(previous: bytes, token_id: int, media: bytes = b"") -> bytes:
    """``media``: what the position has of a picture."""
    return blake2b(previous + token_id.to_bytes(4, "little") + media, digest_size=8).digest()


def seen_at(position: int, offset: int, picture: Picture) -> bytes:
    """What a position has of a picture that begins at ``offset``."""
    return bytes([position - offset]) + picture.views[0].pixels


def seen_by(request: Request) -> dict[int, bytes]:
    """What each position of the prompt has of a picture."""
    return {at: seen_at(at, item.offset, item.picture) for item in request.media for at in range(item.offset, item.end)}


def draw(state: bytes, params: SamplingParams, choice: int, position: int, model: ModelSpec) -> int:
    """The next token after ``state``; stop tokens are masked before ``min_tokens``, as the sampler does.

    With a grammar, eos is not: it ends the choice at any length.
    """
    masked = set(params.stop_token_ids)
    if not params.ignore_eos:
        masked.update(model.eos_token_ids)
    if position >= params.min_tokens:
        masked = set()
    if params.grammar is not None:
        masked.difference_update(model.eos_token_ids)
    for attempt in range(1000):
        noise = blake2b(f"{params.seed} {choice} {position} {attempt}".encode() + state, digest_size=8).digest()
        token_id = int.from_bytes(noise, "little") % model.vocab_size
        if token_id not in masked:
            return token_id
    raise AssertionError("everything is masked")


def candidates(state: bytes, params: SamplingParams, position: int, model: ModelSpec) -> Candidates:
    """What may follow a beam with this ``state``, the likeliest first, as many as a search needs."""
    masked = set(params.stop_token_ids) | (set() if params.ignore_eos else set(model.eos_token_ids))
    logprobs = array("f")
    for token_id in range(model.vocab_size):
        noise = int.from_bytes(blake2b(f"{token_id}".encode() + state, digest_size=2).digest(), "little")
        logprobs.append(-inf if token_id in masked and position < params.min_tokens else -noise / 7000)
    order = sorted(range(model.vocab_size), key=lambda token_id: -logprobs[token_id])
    order = order[: params.beam_search.width + len({*params.stop_token_ids, *model.eos_token_ids})]
    return Candidates(order, [logprobs[token_id] for token_id in order])


def expected_beams(request: Request, model: ModelSpec) -> dict[int, tuple[list[int], Finish]]:
    """What the choices of a search must come to, computed without any scheduler, cache or batch."""
    params, prompt = request.params, request.prompt_token_ids
    most = min(params.max_tokens, model.max_model_len - len(prompt))
    stops = set(params.stop_token_ids) | (set() if params.ignore_eos else set(model.eos_token_ids))

    def stops_at(token_id: int, length: int) -> bool:
        return token_id in stops and length > params.min_tokens

    search, outputs = Search(params.beam_search, range(params.n), most), {0: list[int]()}
    while not search.is_over:
        after = {}
        for member, output in outputs.items():
            state, seen = b"", seen_by(request)
            for at, token_id in enumerate((*prompt, *output)):
                state = digest(state, token_id, seen.get(at, b""))
            after[member] = candidates(state, params, len(output), model)
        chosen = search.advance(outputs, after, lambda token_id, length: length >= most or stops_at(token_id, length))
        search.beams = [Beam(number, each.score) for number, each in enumerate(chosen)]
        outputs = {number: [*outputs[each.parent], each.token_id] for number, each in enumerate(chosen)}
    found: dict[int, tuple[list[int], Finish]] = {}
    for choice in sorted(request.resume) or range(params.n):
        if choice < len(search.ended):
            output = list(search.ended[choice].token_ids)
            is_stop = stops_at(output[-1], len(output))
            found[choice] = output, Finish(FinishReason.STOP, output[-1]) if is_stop else Finish(FinishReason.LENGTH)
        else:
            problem = f"the beam search found only {len(search.ended)} outputs, as so few are allowed"
            finish = Finish(FinishReason.ERROR, error=f"{problem}; expected a smaller n", error_field="n")
            found[choice] = [], finish
    return found


def expected_outputs(request: Request, model: ModelSpec) -> dict[int, tuple[list[int], Finish]]:
    """What each choice must come to."""
    if request.params.beam_search is not None:
        return expected_beams(request, model)
    choices = sorted(request.resume) or range(request.params.n)
    return {choice: expected_output(request, choice, model) for choice in choices}


def expected_output(request: Request, choice: int, model: ModelSpec) -> tuple[list[int], Finish]:
    """What a choice must come to, computed without any scheduler, cache or batch."""
    params = request.params
    output = list(request.resume.get(choice, ()))
    state = b""
    seen = seen_by(request)
    for at, token_id in enumerate((*request.prompt_token_ids, *output)):
        state = digest(state, token_id, seen.get(at, b""))
    stops = set(params.stop_token_ids) | (set() if params.ignore_eos else set(model.eos_token_ids))
    final = set() if params.grammar is None else set(model.eos_token_ids)
    failure = fails_at(params, choice)
    while True:
        if output and (output[-1] in final or (output[-1] in stops and len(output) > params.min_tokens)):
            return output, Finish(FinishReason.STOP, output[-1])
        if len(output) >= params.max_tokens or len(request.prompt_token_ids) + len(output) >= model.max_model_len:
            return output, Finish(FinishReason.LENGTH)
        if failure is not None and len(output) >= failure:
            return output, Finish(FinishReason.ERROR, error=params.grammar)
        output.append(draw(state, params, choice, len(output), model))
        state = digest(state, output[-1])


def prompt_entry(prompt, index: int) -> TokenLogprobs:
    """A recognizable entry for prompt token ``index``."""
    return TokenLogprobs(-float(index), prompt[index] + 1, (), ())


def packed(*entries: TokenLogprobs) -> Logprobs:
    """Of entries without alternatives."""
    values, ranks = array("f", [e.logprob for e in entries]), array("I", [e.rank for e in entries])
    return Logprobs(0, values, ranks, array("I"), array("f"))


@dataclass
class _Worker:
    """What a worker remembers of a sequence."""

    new: NewSequence
    tokens: list[int]
    tables: list[list[int]]
    computed: int
    pictures: dict[bytes, Picture]
    """All that requests have, by key."""
    digests: list[bytes] = field(default_factory=list)

    def expected(self, position: int) -> bytes:
        while len(self.digests) <= position:
            previous, at = self.digests[-1] if self.digests else b"", len(self.digests)
            self.digests.append(digest(previous, self.tokens[at], self.seen(at, self.pictures)))
        return self.digests[position]

    def seen(self, position: int, pictures: dict[bytes, Picture]) -> bytes:
        """What ``position`` has of a picture."""
        for place in self.new.media:
            if place.offset <= position < place.end:
                return seen_at(position, place.offset, pictures[place.key])
        return b""


@dataclass(frozen=True)
class Pending:
    """A step that is computed, but in flight until its result is asked for."""

    executor: CheckedExecutor
    step: StepResult

    def result(self) -> StepResult:
        assert self.step.step_id == next(iter(self.executor.in_use)), "results are asked for in order"
        del self.executor.in_use[self.step.step_id]
        del self.executor.drafting[self.step.step_id]
        del self.executor.sampling[self.step.step_id]
        del self.executor.slots_in_use[self.step.step_id]
        del self.executor.pictures_in_use[self.step.step_id]
        return self.step


class CheckedExecutor(Executor):
    """Computes plans when they are submitted and checks each; a step is in flight until its result is asked for."""

    model_digest = "a model"
    numerics = "hashes"

    def __init__(
        self,
        model: ModelSpec,
        kv_cache_config: KVCacheConfig,
        limits: SchedulerConfig,
        max_concurrent_steps: int = 1,
        stages: int = 1,
        encoder_tokens: int = 0,
    ) -> None:
        """``encoder_tokens``: of pictures, for whose embeddings there is room."""
        self.encoder_tokens = encoder_tokens
        self.pictures: dict[bytes, Picture] = {}
        """Whose embeddings are kept, by key."""
        self.begun: tuple[bytes, float] | None = None
        """The picture that is encoded over several steps, and the share that is done."""
        self.known_pictures: dict[bytes, Picture] = {}
        """All that requests have, by key: with windows of one token, no request may ever have computed a cached one."""
        self.pictures_in_use: dict[int, set[bytes]] = {}
        """Of the steps in flight, by step id."""
        self.stages = stages
        self.model = model
        self.kv_cache_config = kv_cache_config
        self.groups = kv_cache_config.groups
        self.limits = limits
        self.max_concurrent_steps = max_concurrent_steps
        self.block_size = size = kv_cache_config.block_size
        self.kv: dict[int, list[bytes | None]] = {b: [None] * size for b in range(kv_cache_config.num_blocks)}
        self.generation = 0
        """Raised by a test that resets the prefix cache."""
        self.rests_on: dict[tuple[int, int], int] = {}
        """The oldest generation in which a position, or one before it, was computed, by block and offset."""
        self.states: list[bytes | None] = [None] * kv_cache_config.num_states
        self.state_rests_on = [0] * kv_cache_config.num_states
        """As ``rests_on``, of each slot."""
        self.slots_in_use: dict[int, tuple[dict[int, int], dict[int, set[int]]]] = {}
        """Of the steps in flight: who writes and who reads a slot, by step id."""
        self.workers: dict[int, _Worker] = {}
        self.in_use: dict[int, set[int]] = {}
        """Blocks of the steps in flight, by step id, oldest first."""
        self.drafting: dict[int, set[int]] = {}
        """Sequences whose drafts the steps in flight compute, or ask for, by step id."""
        self.sampling: dict[int, set[int]] = {}
        """Sequences that the steps in flight sample a token of, by step id."""
        self.last_step_id = -1
        self.plans: list[StepPlan] = []

    def expect(self, request: Request) -> None:
        """Know the pictures of ``request``, which will be added."""
        for item in request.media:
            self.known_pictures[embedding_key(item.picture.digest, request.cache_salt)] = item.picture

    def start(self, *_):
        raise NotImplementedError

    on_failure = close = start

    def submit(self, plan: StepPlan) -> Pending:
        assert len(self.in_use) < self.max_concurrent_steps
        assert plan.step_id > self.last_step_id
        self.last_step_id = plan.step_id
        self.plans.append(plan)
        self._take_in(plan)
        self._check_batch(plan)
        self._check_states(plan)
        self._encode(plan)
        in_use = {block for seq_id in plan.seq_ids for table in self._live(self.workers[seq_id]) for block in table}
        result = StepResult(plan.step_id, [[] for _ in plan.seq_ids])
        # Last first: no sequence may rely on what another one computes in the same step.
        for index in reversed(range(len(plan.seq_ids))):
            self._compute(plan, index, result)
        self.drafting[plan.step_id] = {*plan.draft_token_ids, *plan.proposals}
        self.sampling[plan.step_id] = {
            seq_id for seq_id, samples in zip(plan.seq_ids, plan.samples, strict=True) if samples
        }
        self.in_use[plan.step_id] = in_use
        return Pending(self, result)

    def _take_in(self, plan: StepPlan) -> None:
        handed_out: list[int] = []
        size = self.block_size
        forked = [self._forked(fork) for fork in plan.forks if fork.parent != fork.seq_id]
        self._copy_blocks(plan.copied_blocks)
        for seq_id in plan.released:
            del self.workers[seq_id]
        for fork in plan.forks:
            if fork.parent == fork.seq_id:
                self.workers[fork.seq_id].tokens[-1] = fork.token_id
        for worker in forked:
            assert worker.new.seq_id not in self.workers
            self.workers[worker.new.seq_id] = worker
        for new in plan.new:
            assert new.seq_id not in self.workers
            assert new.seq_id in plan.seq_ids
            assert new.num_computed_tokens % size == 0
            assert 0 <= new.num_computed_tokens < len(new.token_ids)
            for group, table in zip(self.groups, new.block_ids, strict=True):
                assert group.sliding_window is not None or len(table) == -(-len(new.token_ids) // size)
                handed_out += table[new.num_computed_tokens // size :]
            tables = [list(table) for table in new.block_ids]
            self.workers[new.seq_id] = _Worker(
                new, list(new.token_ids), tables, new.num_computed_tokens, self.known_pictures
            )
        assert len(self.workers) <= self.limits.max_num_seqs
        introduced = {new.seq_id for new in plan.new}
        for seq_id, blocks in plan.new_block_ids.items():
            assert any(blocks)
            assert seq_id in plan.seq_ids
            assert seq_id not in introduced
            for table, added in zip(self.workers[seq_id].tables, blocks, strict=True):
                handed_out += added
                table += added
        assert NO_BLOCK not in handed_out
        assert len(handed_out) == len(set(handed_out))
        for in_use in self.in_use.values():
            assert in_use.isdisjoint(handed_out), "a block of a step in flight was handed out"
        for block in handed_out:
            self.kv[block] = [None] * size

    def _forked(self, fork: Fork) -> _Worker:
        parent = self.workers[fork.parent]
        assert parent.computed == len(parent.tokens) - 1
        assert fork.num_blocks == parent.computed // self.block_size
        assert all(len(own) == bool(parent.computed % self.block_size) for own in fork.block_ids)
        tables = [[*table[: fork.num_blocks], *own] for table, own in zip(parent.tables, fork.block_ids, strict=True)]
        new = replace(parent.new, seq_id=fork.seq_id)
        tokens, digests = [*parent.tokens[:-1], fork.token_id], parent.digests[: parent.computed]
        return _Worker(new, tokens, tables, parent.computed, parent.pictures, digests)

    def _copy_blocks(self, pairs: list[tuple[int, int]]) -> None:
        targets = {target for _, target in pairs}
        assert len(targets) == len(pairs)
        for in_use in self.in_use.values():
            assert in_use.isdisjoint(targets), "a block of a step in flight is overwritten"
        copied = [(target, list(self.kv[source]), source) for source, target in pairs]
        rests_on = dict(self.rests_on)
        for target, content, source in copied:
            self.kv[target] = content
            for offset in range(self.block_size):
                if (source, offset) in rests_on:
                    self.rests_on[target, offset] = rests_on[source, offset]

    def _encode(self, plan: StepPlan) -> None:
        if plan.encoder is not None:
            for key in plan.encoder.forgotten:
                if self.begun is not None and self.begun[0] == key:
                    self.begun = None
                    continue
                del self.pictures[key]
                assert not any(key in each for each in self.pictures_in_use.values()), "a step in flight reads it"
            encoded = 0
            for key, picture in plan.encoder.encoded:
                assert key not in self.pictures, "encoded in vain"
                self.pictures[key] = picture
                encoded += picture.shape.num_tokens
                if self.begun is not None and self.begun[0] == key:
                    self.begun = None
            assert encoded or plan.encoder.portion or plan.encoder.forgotten
            assert encoded <= max(self.limits.max_num_batched_tokens, self.model.vision.max_tokens)
            if plan.encoder.portion is not None:
                self._encode_portion(plan.encoder.portion)
        kept = {*self.pictures, *(() if self.begun is None else self.begun[:1])}
        assert sum(self.known_pictures[key].shape.num_tokens for key in kept) <= self.encoder_tokens
        used = self.pictures_in_use[plan.step_id] = set()
        for seq_id, count in zip(plan.seq_ids, plan.num_tokens, strict=True):
            worker = self.workers[seq_id]
            start, end = worker.computed, worker.computed + count
            for place in worker.new.media:
                if place.offset < end and start < place.end:
                    assert place.key in self.pictures, "a row is computed of a picture that is not there"
                    assert self.pictures[place.key] == self.known_pictures[place.key]
                    assert self.pictures[place.key].shape == place.shape
                    used.add(place.key)
                    if self.model.vision.attends_both_ways:
                        assert start <= place.offset < place.end <= end, "a picture is cut"
        if plan.encoder is not None:
            assert used.issuperset(key for key, _ in plan.encoder.encoded), "encoded before it is needed"

    def _encode_portion(self, portion: EncoderPortion) -> None:
        done = 0.0
        if portion.picture is None:
            assert self.begun is not None, "a portion of a picture that no step has begun"
            key, done = self.begun
            assert key == portion.key, "two pictures at once are encoded over several steps"
        else:
            assert self.begun is None, "two pictures at once are encoded over several steps"
            assert portion.picture == self.known_pictures[portion.key]
        assert portion.key not in self.pictures, "encoded in vain"
        least = encoder_portion_tokens(self.limits, self.model.picture_token_cost)
        tokens = self.known_pictures[portion.key].shape.num_tokens
        assert done < portion.share <= min(1.0, done + least / tokens + 1e-9)
        self.begun = (portion.key, portion.share)
        if portion.share == 1:
            self.begun = None
            self.pictures[portion.key] = self.known_pictures[portion.key]

    def _check_batch(self, plan: StepPlan) -> None:
        assert len(plan.seq_ids) == len(plan.num_tokens) == len(plan.samples) > 0
        assert len(set(plan.seq_ids)) == len(plan.seq_ids) <= self.limits.max_num_seqs
        assert min(plan.num_tokens) >= 1
        assert plan.total_tokens <= self.limits.max_num_batched_tokens
        if not self.limits.enable_chunked_prefill:
            assert all(plan.samples)
        assert plan.proposals.keys() <= {
            each for each, samples in zip(plan.seq_ids, plan.samples, strict=True) if samples
        }
        assert min(plan.proposals.values(), default=1) > 0
        assert sum(plan.samples) + sum(map(len, plan.draft_token_ids.values())) <= self.limits.max_num_seqs
        known = set(plan.seq_ids) - {new.seq_id for new in plan.new}
        assert all(known.isdisjoint(drafting) for drafting in self.drafting.values()), "what is accepted is not known"
        if self.stages > 1:
            assert all(known.isdisjoint(each) for each in self.sampling.values()), "the first stage lacks the token"
        assert all(plan.draft_token_ids.values())
        assert known.issuperset(plan.draft_token_ids)
        for each in self.sampling.values():
            assert each.isdisjoint(plan.draft_token_ids), "drafts would take the place of a token on its way"
            assert each.isdisjoint(plan.proposals), "drafts are asked for behind a token that is not known"
        writers: dict[int, int] = {}
        for seq_id, count in zip(plan.seq_ids, plan.num_tokens, strict=True):
            worker = self.workers[seq_id]
            used = [block for table in self._live(worker) for block in table]
            assert len(set(used)) == len(used)
            first, last = worker.computed, worker.computed + count - 1
            size = self.block_size
            for table in worker.tables:
                for block in table[first // size : last // size + 1]:
                    assert block not in writers
                    writers[block] = seq_id
        for seq_id, worker in self.workers.items():
            for table in self._live(worker):
                for block in table:
                    assert writers.get(block, seq_id) == seq_id, "a block that is written is in two tables"

    def _check_states(self, plan: StepPlan) -> None:
        """No slot that one sequence writes is touched by another one, in this step or in one in flight."""
        if not self.states:
            assert plan.states is None
        writers, readers = self.slots_in_use[plan.step_id] = self._slots(plan) if self.states else ({}, {})
        for earlier_writers, earlier_readers in self.slots_in_use.values():
            for slot, seq_id in writers.items():
                assert earlier_writers.get(slot, seq_id) == seq_id, "a slot is written for two sequences"
                assert earlier_readers.get(slot, {seq_id}) == {seq_id}, "a slot that another one reads is written"
            for slot, seq_ids in readers.items():
                assert slot not in earlier_writers or seq_ids == {earlier_writers[slot]}, "a slot is read too early"

    def _slots(self, plan: StepPlan) -> tuple[dict[int, int], dict[int, set[int]]]:
        """Who writes, and who reads, each slot."""
        states = plan.states
        assert len(states.sources) == len(states.targets) == len(plan.seq_ids)
        assert states.saves.keys() <= set(plan.seq_ids)
        writers: dict[int, int] = {}
        readers: dict[int, set[int]] = {}
        for index, seq_id in enumerate(plan.seq_ids):
            saves = states.saves.get(seq_id, [])
            rows = [row for row, _ in saves]
            assert rows == sorted(set(rows))
            assert all(0 < row < plan.num_tokens[index] for row in rows)
            for slot in (states.targets[index], *(slot for _, slot in saves)):
                assert 0 <= slot < len(self.states)
                assert slot not in writers, "a slot is written twice"
                writers[slot] = seq_id
            if states.sources[index] != NO_STATE:
                readers.setdefault(states.sources[index], set()).add(seq_id)
        return writers, readers

    def _compute(self, plan: StepPlan, index: int, result: StepResult) -> None:
        seq_id, count = plan.seq_ids[index], plan.num_tokens[index]
        worker = self.workers[seq_id]
        params = worker.new.params
        start, end = worker.computed, worker.computed + count
        num_known, drafts = len(worker.tokens), plan.draft_token_ids.get(seq_id, [])
        worker.tokens += drafts
        assert plan.samples[index] == (end == len(worker.tokens))
        assert not drafts or start == num_known - 1
        assert end < min(worker.new.num_prompt_tokens + params.max_tokens, self.model.max_model_len), "in vain"
        for number, group in enumerate(self.groups):
            for position in range(first_seen(start, group.sliding_window, chunked=group.chunked), start):
                read = self._read(worker, number, position)
                assert read == worker.expected(position), "a block does not hold what it should"
        # With windows of one token nothing is read of the position before.
        state = worker.expected(start - 1) if start else b""
        oldest = self.generation
        if start and self.groups:
            oldest = self.rests_on.get(self._slot(worker, 0, start - 1), self.generation)
        if self.states:
            source = plan.states.sources[index]
            assert (source == NO_STATE) == (start == 0)
            if start:
                assert self.states[source] == state, "a slot does not hold the state that it should"
                oldest = min(oldest, self.state_rests_on[source])
        states = []
        for position in range(start, end):
            state = digest(state, worker.tokens[position], worker.seen(position, self.pictures))
            states.append(state)
            for number in range(len(self.groups)):
                block, offset = self._slot(worker, number, position)
                self.kv[block][offset] = state
                self.rests_on[block, offset] = oldest
        if self.states:
            for row, slot in (*plan.states.saves.get(seq_id, ()), (count, plan.states.targets[index])):
                self.states[slot], self.state_rests_on[slot] = states[row - 1], oldest
        if plan.samples[index]:
            self._sample(worker, num_known, drafts, states, result, index)
            if params.logprobs is not None:
                first = num_known - worker.new.num_prompt_tokens
                entries = [
                    TokenLogprobs(-float(position), token_id + 1, (), ())
                    for position, token_id in enumerate(result.token_ids[index], start=first)
                ]
                result.logprobs[seq_id] = packed(*entries)
        elif fails_at(params, worker.new.choice) == -1:
            result.failed[seq_id] = Failure(params.grammar)
        worker.computed = end if not drafts else len(worker.tokens) - 1
        if params.prompt_logprobs is not None:
            last = min(end, worker.new.num_prompt_tokens - 1)
            scores = [prompt_entry(worker.tokens, at) for at in range(start + 1, last + 1)]
            if scores:
                result.prompt_logprobs[seq_id] = packed(*scores)

    def _sample(
        self,
        worker: _Worker,
        num_known: int,
        drafts: list[int],
        states: list[bytes],
        result: StepResult,
        index: int,
    ) -> None:
        """Sample from the ``states`` of the last rows, up to the first draft that is not sampled, or to a failure."""
        del worker.tokens[num_known:]
        params, choice, sampled = worker.new.params, worker.new.choice, result.token_ids[index]
        if params.beam_search is not None:
            after = candidates(states[-1], params, num_known - worker.new.num_prompt_tokens, self.model)
            sampled.append(after.token_ids[0])
            worker.tokens.append(after.token_ids[0])
            first = array("f", after.logprobs[:1]), array("I", [1])
            likeliest = array("I", after.token_ids), array("f", after.logprobs)
            result.logprobs[worker.new.seq_id] = Logprobs(len(after.token_ids), *first, *likeliest)
            if fails_at(params, choice) == num_known - worker.new.num_prompt_tokens:
                del sampled[:]
                result.failed[worker.new.seq_id] = Failure(params.grammar)
            return
        failure = fails_at(params, choice)
        for state, draft in zip(states[len(states) - 1 - len(drafts) :], [*drafts, None], strict=True):
            position = len(worker.tokens) - worker.new.num_prompt_tokens
            if failure is not None and position >= failure:
                result.failed[worker.new.seq_id] = Failure(params.grammar)
                if not drafts:
                    worker.tokens.append(0)  # Steps that were planned before this is known need some token.
                return
            sampled.append(draw(state, params, choice, position, self.model))
            worker.tokens.append(sampled[-1])
            if failure is not None and failure % 2 == 0 and position + 1 == failure:
                result.failed[worker.new.seq_id] = Failure(params.grammar)
                return
            if sampled[-1] != draft:
                return

    def _live(self, worker: _Worker) -> list[list[int]]:
        """What its next row reads or writes of each table, and what later ones will."""
        groups, size = zip(self.groups, worker.tables, strict=True), self.block_size
        return [table[group.first_block(worker.computed, size) :] for group, table in groups]

    def _slot(self, worker: _Worker, group: int, position: int) -> tuple[int, int]:
        return worker.tables[group][position // self.block_size], position % self.block_size

    def _read(self, worker: _Worker, group: int, position: int) -> bytes:
        block, offset = self._slot(worker, group, position)
        assert block != NO_BLOCK, "a position is read that has no block"
        value = self.kv[block][offset]
        assert value is not None, "a position is read that was never written"
        return value
