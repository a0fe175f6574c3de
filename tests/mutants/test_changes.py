"""Changes are small, run, and hit what they name; the draw depends on the seed alone."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.mutants.__main__ import ROOT, drawn, room_of, tried
from tests.mutants.changes import changes_of

SOURCE = b"""def f(a, b):
    if a < b and b != 3:  # \xc3\xa9
        return a + b
    return [b"x" + b, a is None]
"""


def test_every_kind_of_change_of_a_function() -> None:
    made = {(change.what, change.applied(SOURCE)) for change in changes_of(SOURCE)}
    assert {what for what, _ in made} == {
        "a comparison turned",
        "and and or exchanged",
        "a sign turned",
        "a bound moved",
        "a branch turned",
        "a branch dropped",
    }
    assert ("a bound moved", SOURCE.replace(b"!= 3", b"!= (4)")) in made
    assert ("a sign turned", SOURCE.replace(b"a + b", b"((a) - (b))")) in made
    assert all(ast.dump(ast.parse(source)) != ast.dump(ast.parse(SOURCE)) for _, source in made)
    assert len(made) == 8


def test_a_draw_is_repeated_and_reaches_many_rooms() -> None:
    assert drawn(60, 3) == drawn(60, 3) != drawn(60, 4)
    assert len({room_of(mutant.path) for mutant in drawn(60, 3)}) > 15


def test_a_change_is_caught_survives_or_is_not_decided(tmp_path: Path) -> None:
    mutant = next(one for one in drawn(60, 3) if one.path.endswith(".py"))
    (tmp_path / mutant.path).parent.mkdir(parents=True)
    reads, known = f"__import__('pathlib').Path({mutant.path!r}).read_bytes()", (ROOT / mutant.path).read_bytes()
    for body, seconds, outcome in (
        (f"assert {reads} == {known!r}", 60.0, "caught"),
        ("pass", 60.0, "survived"),
        ("assert False", 60.0, "undecided"),
        ("__import__('time').sleep(60)", 1.0, "undecided"),
    ):
        (tmp_path / "test_one.py").write_text(f"def test_it():\n    {body}\n")
        assert tried(tmp_path, mutant, ["test_one.py"], seconds) == outcome
