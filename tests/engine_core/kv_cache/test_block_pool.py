"""The block pool against a naive model: an ordered list of free blocks and a dictionary of contents."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine_core.kv_cache.block_pool import BlockPool

from ..scheduling.audit import check_pool


class PoolMachine(RuleBasedStateMachine):
    @initialize(size=st.integers(1, 12))
    def start(self, size):
        self.pool = BlockPool(size)
        self.free = list(range(size))
        self.counts = [0] * size
        self.content: dict[int, bytes] = {}
        """Of known blocks and their copies."""
        self.known: dict[bytes, int] = {}

    @rule(count=st.integers(0, 6))
    def allocate(self, count):
        if count > len(self.free):
            with pytest.raises(RuntimeError):
                self.pool.allocate(count)
            return
        expected, self.free = self.free[:count], self.free[count:]
        assert self.pool.allocate(count) == expected
        for block in expected:
            self.counts[block] = 1
            self.known.pop(self.content.pop(block, None), None)

    @rule(data=st.data())
    def hold(self, data):
        block = data.draw(st.sampled_from(range(len(self.counts))))
        self.pool.hold([block])
        self.counts[block] += 1
        if block in self.free:
            self.free.remove(block)

    @rule(data=st.data())
    def release(self, data):
        blocks = data.draw(st.lists(st.sampled_from(range(len(self.counts))), unique=True))
        for block in blocks:
            if self.counts[block] == 0:
                with pytest.raises(RuntimeError, match="freed twice"):
                    self.pool.release([block])
                continue
            self.pool.release([block])
            self.counts[block] -= 1
            if self.counts[block] == 0:
                self.leave(block)

    def leave(self, block):
        """Nobody holds it any more: another block that holds the same is the known one, if there is any."""
        content = self.content.get(block)
        others = [other for other, same in self.content.items() if same == content and other != block]
        if content is None or others:
            self.content.pop(block, None)
            self.free.insert(0, block)
            if self.known.get(content) == block:
                self.known[content] = others[-1]
        else:
            self.free.append(block)

    @rule(data=st.data())
    def withdraw(self, data):
        block = data.draw(st.sampled_from(range(len(self.counts))))
        self.pool.withdraw(block)
        if self.counts[block] == 0:
            content = self.content.pop(block, None)
            assert content is None or self.known.pop(content) == block
            self.free.remove(block)
            self.free.insert(0, block)

    @rule(data=st.data(), content=st.sampled_from([b"a", b"b", b"c", b"d"]))
    def publish(self, data, content):
        held = [block for block, count in enumerate(self.counts) if count]
        if held:
            block = data.draw(st.sampled_from(held))
            self.pool.publish(block, content)
            if block in self.content:
                return
            self.content[block] = content
            known = self.known.setdefault(content, block)
            if known in self.free:
                del self.content[known]
                self.known[content] = block
                self.free.remove(known)
                self.free.insert(0, known)

    @rule()
    def forget(self):
        assert self.pool.forget_contents() == len(self.known)
        self.content.clear()
        self.known.clear()

    @precondition(lambda self: hasattr(self, "pool"))
    @invariant()
    def agrees(self):
        check_pool(self.pool)
        assert [self.pool.ref_count(block) for block in range(len(self.counts))] == self.counts
        assert self.pool.num_free == len(self.free)
        assert not self.free or self.pool.would_evict == (self.free[0] in self.content)
        for content in (b"a", b"b", b"c", b"d"):
            assert self.pool.find(content) == self.known.get(content)


PoolMachine.TestCase.settings = settings(max_examples=60, deadline=None)
TestPoolMachine = PoolMachine.TestCase
