"""``python -m tests.mutants.rooms``: the share of lines and branches that tests execute, by room, as a table.

``--json FILE`` writes the figures; ``--against FILE`` puts them beside those of another run, and names what was lost.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path

from coverage import Coverage
from coverage.results import Numbers

from tests.mutants.__main__ import ROOT, room_of


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants.rooms", description=__doc__)
    parser.add_argument("--coverage", type=Path, default=ROOT / ".coverage", help="the data (default: .coverage)")
    parser.add_argument("--json", type=Path, default=None, help="write the figures there")
    parser.add_argument("--against", type=Path, default=None, help="figures of another run")
    given = parser.parse_args()
    measured = Coverage(data_file=str(given.coverage), config_file=str(ROOT / "tests" / "coverage.ini"))
    measured.load()
    rooms: dict[str, Numbers] = defaultdict(Numbers)
    missing: dict[str, list[int]] = {}
    for path in measured.get_data().measured_files():
        if not (Path(path).is_relative_to(ROOT) and Path(path).exists()):
            continue  # a test's copy of the tree, or code of a document
        name = str(Path(path).relative_to(ROOT))
        analysis = measured._analyze(path)
        rooms[room_of(name)] += analysis.numbers
        missing[name] = sorted(analysis.missing)
    shares = {room: round(numbers.pc_covered, 2) for room, numbers in sorted(rooms.items())}
    before = json.loads(given.against.read_text()) if given.against is not None else {"rooms": {}, "missing": {}}
    for room, share in shares.items():
        known = before["rooms"].get(room)
        print(f"{room:32} {share:6.2f} %" + ("" if known is None else f"  was {known:6.2f} %, {share - known:+.2f}"))
    for name, lines in missing.items():
        if lost := sorted(set(lines) - set(before["missing"].get(name, lines))):
            print(f"lost in {name}: {', '.join(map(str, lost))}")
    if given.json is not None:
        given.json.write_text(json.dumps({"rooms": shares, "missing": missing}, indent=1) + "\n")


if __name__ == "__main__":
    main()
