"""Graphs of names that refer to each other: rules of a grammar, definitions of a schema."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from collections.abc import Set as AbstractSet

MAX_LEVELS = 256
"""Parts within or behind each other: for each, llguidance needs 3 KiB of a thread's stack."""

Graph = Mapping[str, AbstractSet[str]]
"""Names, and those to which each refers."""


def in_order(graph: Graph) -> tuple[list[str], bool]:
    """The names, each after those to which it refers; and whether any refers to itself, directly or not."""
    order: list[str] = []
    on_path: set[str] = set()
    done: set[str] = set()
    circular = False
    stack = [(name, False) for name in graph]
    while stack:  # not recursively: chains may be long
        name, leaves = stack.pop()
        if leaves:
            on_path.discard(name)
            done.add(name)
            order.append(name)
        elif name in on_path:
            circular = True
        elif name not in done:
            on_path.add(name)
            stack.append((name, True))
            stack += [(each, False) for each in graph[name] if each not in done]
    return order, circular


def levels(graph: Graph, own: Mapping[str, int]) -> int:
    """An upper limit of the levels that are open at once when references are followed, each name once.

    ``own``: levels of each name by itself. A circle of names may be followed all around.
    """
    order, _ = in_order(graph)
    above: dict[str, set[str]] = {name: set() for name in graph}
    for name, references in graph.items():
        for each in references:
            above[each].add(name)
    circle: dict[str, int] = {}
    for number, start in enumerate(reversed(order)):  # the algorithm of Kosaraju
        stack = [start]
        while stack:
            if (name := stack.pop()) not in circle:
                circle[name] = number
                stack += above[name]
    around: Counter[int] = Counter()
    for name, number in circle.items():
        around[number] += own[name]
    depths: dict[int, int] = {}
    for name in order:
        number = circle[name]
        below = max((depths[circle[each]] for each in graph[name] if circle[each] != number), default=0)
        depths[number] = max(depths.get(number, 0), around[number] + below)
    return max(depths.values(), default=0)
