"""What the code is made of is counted from its text."""

from __future__ import annotations

from tests.house.pieces import elementwise_files, open_files, pieces, table

TREE = {
    "services/one.py": '''"""Why."""
class A:
    def _once(self, first, *, second=1):
        """Says what."""
        return second

    def go(self):
        self._once(2)
        return _twice() + _twice()

def _twice():
    return 1
''',
    "services/two.h": "float sigmoid_gate(float);\n",
    "engine_core/models/mixtral.py": "from engine_core.layers.fused_moe import Experts\nimport torch\n",
    "engine_core/layers/fused_moe.py": "from engine_core.layers.base import B\nfrom engine_core.models import llama\n",
    "engine_core/layers/base.py": "",
    "engine_core/models/llama.py": "import engine_core.models.mixtral\nfrom engine_core.attention.base import C\n",
    "engine_core/attention/base.py": "",
}


def test_a_room_is_counted() -> None:
    assert pieces(TREE, "services") == {
        "modules": "1",
        "lines": "13",
        "classes": "1",
        "functions of one statement": "2",
        "private helpers called once": "1",
        "longest signature": "2 (one.py: _once)",
    }


def test_imports_are_followed_within_models_and_layers() -> None:
    models = ["engine_core/models/llama.py", "engine_core/models/mixtral.py"]
    assert open_files(TREE, "mixtral") == ["engine_core/layers/fused_moe.py", *models]
    assert elementwise_files(TREE) == ["services/two.h"]


def test_trees_stand_beside_each_other() -> None:
    lines = table({"before": TREE, "after": TREE | {"services/three.py": ""}}).splitlines()
    assert lines[0].split() == ["before", "after"]
    assert ["modules", "1", "2"] in [line.split() for line in lines]
