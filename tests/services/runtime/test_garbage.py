"""What a process has loaded is no longer looked at when Python looks for cycles."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def test_what_is_loaded_is_spared_and_what_comes_later_is_not() -> None:
    code = """
import gc
from services.runtime.garbage import spare_what_is_loaded

class Node: pass

early = Node()
spare_what_is_loaded()
late = Node()
assert not [one for one in gc.get_objects() if one is early]
assert [one for one in gc.get_objects() if one is late]
late.itself = late
del late
assert gc.collect() >= 1
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
