"""Graphs of names that refer to each other: rules of a grammar, definitions of a schema."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from collections.abc import Set as AbstractSet

MAX_LEVELS = 256
"""Maximum depth of nested or chained parts: llguidance needs 3 KiB of a thread's stack per level."""

Graph = Mapping[str, AbstractSet[str]]
"""Name → names it refers to."""


def in_order(graph: Graph) -> tuple[list[str], bool]:
    """The names in topological order, referents first; and whether any refers to itself, directly or indirectly."""
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
    """An upper bound on the levels open at once when references are followed, visiting each name once.

    ``own``: levels of each name by itself. A cycle counts all its names.
    """
    order, _ = in_order(graph)
    above: dict[str, set[str]] = {name: set() for name in graph}
    for name, references in graph.items():
        for each in references:
            above[each].add(name)
    circle: dict[str, int] = {}
    for number, start in enumerate(reversed(order)):  # Kosaraju's algorithm
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
