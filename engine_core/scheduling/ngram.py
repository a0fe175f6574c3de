"""Drafts that are looked up: where the last tokens came before, what followed them may follow again (prompt lookup).

Every text has an index of its runs of tokens, which grows with it, a bounded number of tokens in each step: a long
prompt is searched only when several steps have indexed it. With the scope ``tenant``, the texts of requests that have
ended are searched, too, by requests of the same tenant and cache salt.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass

from engine_core.sequence import Sequence
from engine_core.speculation import BYTES_PER_INDEXED_TOKEN, INDEX_BYTES, LEAST_INDEXED, SpeculativeConfig

STRONGEST = 16
"""A longer run says no more about what follows."""
MOST_TOKENS = 1 << 17
"""Of a text, and of all texts of a tenant: the newest are indexed."""
MOST_BYTES = INDEX_BYTES
"""Of all indexes."""
STEP_TOKENS = 2048
"""Tokens indexed in a step, about 1.5 ms."""
MOST_ENDED = 1 << 19
"""Tokens of texts that have ended and wait for being indexed for their tenant, 2 MiB; the oldest are given up."""
_CANDIDATES = 8
"""Places with equal hashes that are compared, the newest first."""
_PRICE_OF_ROOM = 512
"""Making an index with room for so many tokens takes as long as indexing one."""
_BORDER = -1
"""Separates texts."""


class RunIndex:
    """Finds where a run of tokens came before. Keeps the newest ``capacity`` tokens."""

    def __init__(self, least: int, capacity: int) -> None:
        """``least``: the shortest run that is found. ``capacity``: a power of two."""
        self.capacity = capacity
        self.end = 0
        """Number of tokens that came so far."""
        self._least = least
        self._mask = capacity - 1
        self._tokens = array("i", (0,)) * capacity
        self._newest = array("q", (0,)) * capacity
        """By the hash of a run: the newest position behind one, plus 1; 0: none."""
        self._before = array("q", (0,)) * capacity
        """By position: the one before with the same hash, plus 1."""
        self._last = (_BORDER,) * least
        """The newest tokens."""

    @property
    def nbytes(self) -> int:
        return BYTES_PER_INDEXED_TOKEN * self.capacity

    def extend(self, token_ids: Iterable[int]) -> None:
        """Add tokens; the run before each can be found from then on."""
        tokens, newest, before, mask = self._tokens, self._newest, self._before, self._mask
        last, end = self._last, self.end
        for token_id in token_ids:
            place, bucket = end & mask, hash(last) & mask
            before[place] = newest[bucket]
            end += 1
            newest[bucket] = end
            tokens[place] = token_id
            last = (*last[1:], token_id)
        self._last, self.end = last, end

    def find(self, tail: tuple[int, ...], most: int) -> tuple[int, int]:
        """The position behind the longest run that is also the end of ``tail``, and its length; (0, 0): none.

        Runs longer than ``most`` are as good as those of this length; of equally good ones it is the newest. Lengths
        are counted up to that of ``tail``.
        """
        tokens, mask, oldest = self._tokens, self._mask, max(0, self.end - self.capacity)
        following = self._newest[hash(tail[-self._least :]) & mask]
        found = best = 0
        for _ in range(_CANDIDATES):
            position = following - 1
            if position < oldest + self._least:
                break
            length, longest = 0, min(len(tail), position - oldest)
            while length < longest and tokens[(position - 1 - length) & mask] == tail[-1 - length]:
                length += 1
            if length > best:
                found, best = position, length
                if length >= most:
                    break
            following = self._before[position & mask]
        return (found, best) if best >= self._least else (0, 0)

    def following(self, position: int, count: int, *, repeat: bool) -> list[int]:
        """Up to ``count`` tokens from ``position`` on; with ``repeat``, they begin anew where the text ends."""
        length = self.end - position
        if not 0 < length <= self.capacity:
            return []
        found: list[int] = []
        for at in range(count if repeat else min(count, length)):
            token_id = self._tokens[(position + at % length) & self._mask]
            if token_id == _BORDER:
                break
            found.append(token_id)
        return found


@dataclass(slots=True)
class _Text:
    """The tokens of a running sequence."""

    index: RunIndex
    num_indexed: int = 0
    source: RunIndex | None = None
    """Where the newest drafts were found; None: nowhere, or one of them was wrong."""
    position: int = 0
    """In ``source``: of the first draft."""
    strength: int = 0
    """Tokens of the run that led there, which grows with the drafts that come true."""
    known: int = 0
    """Tokens of the sequence that ``position`` is behind: others than those judged may come, which a grammar forces."""


@dataclass(slots=True)
class _Ended:
    """A text to be indexed for its tenant."""

    key: tuple[str, bytes]
    token_ids: array[int]
    num_indexed: int = 0


class NgramDrafter:
    """Looks up drafts for sequences. Call ``begin_step``, then ``look_up`` for those that may have drafts."""

    def __init__(self, config: SpeculativeConfig) -> None:
        self._config = config
        self._texts: OrderedDict[int, _Text | None] = OrderedDict()
        """By seq_id, the last one looked up last; None: its index was dropped, as there was no room for it."""
        self._tenants: OrderedDict[tuple[str, bytes], RunIndex] = OrderedDict()
        """By tenant and cache salt, the last one looked up last."""
        self._ended: deque[_Ended] = deque()
        """The first one ended first."""
        self._num_ended = 0
        """Tokens of these."""
        self._room = STEP_TOKENS
        """Tokens that the step may still index."""
        self.nbytes = 0
        """Of all indexes."""

    def begin_step(self) -> None:
        """Index for tenants what has ended, as far as running sequences have left room for it in the last step."""
        room, self._room = self._room, STEP_TOKENS
        while self._ended and room > 0:
            ended = self._ended[0]
            if ended.key not in self._tenants:
                room = max(0, room - MOST_TOKENS // _PRICE_OF_ROOM)
            if (index := self._index_of(ended.key)) is not None:
                start, ended.num_indexed = ended.num_indexed, min(len(ended.token_ids), ended.num_indexed + room)
                index.extend([_BORDER] if start == 0 else ())
                index.extend(ended.token_ids[start : ended.num_indexed])
                room -= ended.num_indexed - start
                if ended.num_indexed < len(ended.token_ids):
                    return
            self._drop_ended()

    def _drop_ended(self) -> None:
        self._num_ended -= len(self._ended.popleft().token_ids)

    def look_up(self, seq: Sequence, count: int) -> tuple[list[int], int]:
        """Up to ``count`` tokens that followed the last known tokens of ``seq``, and the length of the run that led
        there, up to ``STRONGEST`` or more.
        """
        text = self.follow(seq)
        if text is None or text.num_indexed < seq.num_known:
            return [], 0
        if text.source is None or text.known != seq.num_known:
            self._find(text, seq)
        if text.source is None:
            return [], 0
        drafts = text.source.following(text.position, count, repeat=text.source is text.index)
        if not drafts:
            text.source = None
        return drafts, text.strength

    def judged(self, seq: Sequence, num_right: int, *, all_right: bool) -> None:
        """Of the drafts that were looked up, ``num_right`` came true, and unless ``all_right`` the next one did not."""
        text = self._texts.get(seq.seq_id)
        if text is not None:
            text.position += num_right
            text.strength += num_right
            text.known = seq.num_known
            if not all_right:
                text.source = None

    def end(self, seq: Sequence) -> None:
        """Forget ``seq``, which has ended; its tenant may keep its text."""
        text = self._texts.pop(seq.seq_id, None)
        if text is not None:
            self.nbytes -= text.index.nbytes
        if self._config.prompt_lookup_scope == "tenant" and seq.group.beams is None:
            # The first choice brings the prompt, others only what leads to their output.
            first = 0 if seq.choice == 0 else max(0, seq.group.num_prompt_tokens - STRONGEST)
            token_ids = seq.tokens(max(first, seq.num_known - MOST_TOKENS), seq.num_known)
            self._ended.append(_Ended(_key(seq), array("i", token_ids)))
            self._num_ended += len(token_ids)
            while self._num_ended > MOST_ENDED:
                self._drop_ended()

    def _find(self, text: _Text, seq: Sequence) -> None:
        known, most = seq.num_known, self._config.prompt_lookup_max
        tail = seq.tokens(max(0, known - STRONGEST), known)
        indexes = [text.index]
        if (shared := self._tenants.get(_key(seq))) is not None:
            self._tenants.move_to_end(_key(seq))
            indexes.append(shared)
        text.source, text.known, best = None, known, 0
        for index in indexes:
            position, length = index.find(tail, most)
            if min(length, most) > min(best, most):
                best = length
                text.source, text.position, text.strength = index, position, length

    def follow(self, seq: Sequence) -> _Text | None:
        """The text of ``seq``, indexed as far as the step has room for; None if it has no index."""
        text = self._texts.get(seq.seq_id)
        known = seq.num_known
        if text is None or (known > text.index.capacity and text.index.capacity < MOST_TOKENS):
            if seq.seq_id in self._texts and text is None:
                return None
            if self._room <= 0:
                return text
            # Begun anew, an index of twice the size costs each token once more.
            text = self._start(seq, 0 if text is None else text.index.nbytes)
            if text is None:
                return None
        if (missing := known - text.num_indexed) > 0:
            if missing > MOST_TOKENS:
                text.num_indexed = known - MOST_TOKENS
            until = min(known, text.num_indexed + self._room)
            text.index.extend(seq.tokens(text.num_indexed, until))
            self._room -= until - text.num_indexed
            text.num_indexed = until
        self._texts.move_to_end(seq.seq_id)
        return text

    def _start(self, seq: Sequence, freed: int) -> _Text | None:
        """A new index for ``seq``, with room for some output."""
        self.nbytes -= freed
        self._texts[seq.seq_id] = None
        capacity = LEAST_INDEXED
        while capacity < min(seq.num_known + LEAST_INDEXED, MOST_TOKENS):
            capacity *= 2
        if not self._make_room(BYTES_PER_INDEXED_TOKEN * capacity, drop_running=True):
            return None
        text = self._texts[seq.seq_id] = _Text(RunIndex(self._config.prompt_lookup_min, capacity))
        self.nbytes += text.index.nbytes
        self._room = max(0, self._room - capacity // _PRICE_OF_ROOM)
        return text

    def _index_of(self, key: tuple[str, bytes]) -> RunIndex | None:
        index = self._tenants.get(key)
        if index is None and self._make_room(BYTES_PER_INDEXED_TOKEN * MOST_TOKENS, drop_running=False):
            index = self._tenants[key] = RunIndex(self._config.prompt_lookup_min, MOST_TOKENS)
            self.nbytes += index.nbytes
        return index

    def _make_room(self, nbytes: int, *, drop_running: bool) -> bool:
        """Drop indexes of tenants, then perhaps of running sequences, those looked up longest ago first."""
        while self.nbytes + nbytes > MOST_BYTES and self._tenants:
            _, index = self._tenants.popitem(last=False)
            self.nbytes -= index.nbytes
            for text in self._texts.values():
                if text is not None and text.source is index:
                    text.source = None  # else it would keep what is dropped
        for seq_id, text in self._texts.items() if drop_running else ():
            if self.nbytes + nbytes <= MOST_BYTES:
                break
            if text is not None:
                self.nbytes -= text.index.nbytes
                self._texts[seq_id] = None
        return self.nbytes + nbytes <= MOST_BYTES


def _key(seq: Sequence) -> tuple[str, bytes]:
    request = seq.group.request
    return request.tenant, request.cache_salt
