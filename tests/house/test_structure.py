"""The house stays in order: what no linter knows of."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.ring import ROOT

ROOMS = ("engine_core", "services", "text_core", "clients/python", "checkpoints")
MAX_FUNCTION = 75
"""Lines: a screen. A kernel of a GPU is one function, however long."""
MAX_NAME = 80


def sources(*rooms: str) -> list[Path]:
    """Hand-written Python files."""
    files = (path for room in rooms for path in sorted((ROOT / room).rglob("*.py")))
    return [path for path in files if not path.stem.endswith(("_pb2", "_pb2_grpc"))]


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def imported(text: str) -> Iterator[str]:
    """Dotted names of all that a module imports, wherever in it."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_files_say_their_reason_and_stay_readable() -> None:
    texts = {relative(path): path.read_text() for path in sources(*ROOMS)}
    assert not [path for path, text in texts.items() if not ast.get_docstring(ast.parse(text))], "no first lines"
    unfinished = re.compile(r"\b(TODO|FIXME|XXX)\b|NotImplementedError")
    assert not [path for path, text in texts.items() if unfinished.search(text)]


def test_functions_can_be_seen_whole() -> None:
    long = [
        f"{relative(path)}: {node.name}"
        for path in sources(*ROOMS)
        if "triton" not in path.parts
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or 0) - node.lineno >= MAX_FUNCTION
    ]
    assert long == []


def test_engine_core_reads_no_environment() -> None:
    names = {"environ", "environb", "getenv", "getenvb"}
    readers = {
        relative(path)
        for path in sources("engine_core")
        for node in ast.walk(ast.parse(path.read_text()))
        if (isinstance(node, ast.Attribute) and node.attr in names)
        or (isinstance(node, ast.ImportFrom) and any(alias.name in names for alias in node.names))
    }
    assert not readers


def test_protobuf_meets_the_core_in_one_place() -> None:
    """Whoever knows a message of the contract knows no request or step of the core, except ``protobuf.py``."""
    meeting = set()
    for path in sources("services"):
        names = list(imported(path.read_text()))
        knows_messages = any(name.split(".")[-1].endswith("_pb2") for name in names)
        knows_steps = any(name.startswith(("engine_core.request", "engine_core.step")) for name in names)
        if knows_messages and knows_steps:
            meeting.add(relative(path))
    assert meeting == {"services/engine/engine_messages.py"}


def test_a_call_is_ended_with_details() -> None:
    """Every status says its reason to programs: the one place that ends a call writes it."""
    ends = re.compile(r"context\.(abort|abort_with_status|set_code|set_details|set_trailing_metadata)\(")
    ending = {relative(path) for path in sources("services") if ends.search(path.read_text())}
    assert ending == {"services/common/rpc/shared_messages.py"}


def test_nothing_of_a_checkpoint_is_executed() -> None:
    """Code from a model's folder never runs: the option that would allow it is named nowhere but to say no."""
    for path in sources("engine_core", "services", "text_core"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.keyword) and node.arg == "trust_remote_code":
                assert isinstance(node.value, ast.Constant), relative(path)
                assert node.value.value is False, relative(path)


SCENARIOS = {
    "engine_core": "batch_independence crash forced_tokens interrupts limits loaded transformers_parity unsound_logits",
    "engine_core/attention": "latents whole_inputs",
    "engine_core/executor": "many_kills many_starts",
    "engine_core/distributed": "drafts_of_ranks encoders matrix tensor_parallel weights_of_ranks",
    "engine_core/kernels": "engine libraries ops",
    "engine_core/layers": "expert_tensors",
    "engine_core/lora": "adapter_independence adapter_refusals experts_independence experts_parity multimodal_parity "
    "parity pooled_parity quantized_bases",
    "engine_core/model_loader": "load_memory quantized_models",
    "engine_core/models": "against_transformers bitwise_stability config_errors encoders families long_generation "
    "longrope multimodal published shared_caches single_fields stages tensors_left_out transformers_fallback "
    "unlike_layers",
    "engine_core/ops": "experts_lora",
    "engine_core/pooling": "encoders precision rewards",
    "engine_core/quantization": "rounded_experts",
    "engine_core/scheduling": "stages",
    "engine_core/structured_output": "schemas without_llguidance",
    "services/cli": "diagnosis pooling_commands secured",
    "services/gateway": "after_admission dialects other_apis",
    "services/processor": "cycles",
    "text_core": "calls_in_templates families published_templates suite",
}
"""By room, tests of what no one module does."""


def test_tests_bear_the_names_of_what_they_test() -> None:
    """``test_routes.py``, and ``test_routes_of_tenants.py``, are about a module or a room that is called ``routes``."""
    nameless = []
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        *room, _ = path.relative_to(ROOT / "tests").parts[:3]
        room = room[:1] if room[:1] == ["text_core"] else room
        if room[:1] in (["engine_core"], ["text_core"]) or (room[:1] == ["services"] and len(room) == 2):
            place = "/".join(room)
            names = {one.stem for one in (ROOT / place).rglob("*") if one.suffix == ".py" or one.is_dir()}
            subject = path.stem.removeprefix("test_")
            about = any(f"{subject}_".startswith(f"{name}_") for name in names)
            nameless += [] if about or subject in SCENARIOS.get(place, "").split() else [f"{place}: {subject}"]
    assert nameless == []


def test_names_of_tests_can_be_read_at_a_glance() -> None:
    found = {relative(path): re.findall(r"def (test_\w+)", path.read_text()) for path in sources("tests")}
    assert not [f"{path}: {name}" for path, names in found.items() for name in names if len(name) > MAX_NAME]


def test_what_tests_import_of_each_other_is_there() -> None:
    """Files that only a long suite collects would fail there alone."""
    names = {
        relative(path).removesuffix(".py").removesuffix("/__init__").replace("/", "."): names_of(path.read_text())
        for path in sources("tests")
    }
    missing = [
        f"{module}: {source}.{name}"
        for module, (_, imports) in names.items()
        for source, name in imports
        if source.partition(".")[0] == "tests"
        and name not in names.get(source, (set(), []))[0]
        and f"{source}.{name}" not in names
    ]
    assert missing == []


def names_of(text: str) -> tuple[set[str], list[tuple[str, str]]]:
    """All that a module defines or imports, and what it imports from where."""
    defined, imports = set(), []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            defined.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            defined.add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            defined |= {alias.asname or alias.name for alias in node.names}
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                imports += [(str(node.module), alias.name) for alias in node.names]
    return defined, imports
