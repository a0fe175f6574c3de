"""The options of ``ringline engine``, as far as they are checked before torch is loaded."""

import subprocess
import sys

import click
import pytest

from services.cli.commands.engine import engine_config
from services.common.config.errors import ExitCode, FatalError


def test_what_is_wrong_with_a_model_is_told_as_far_as_it_shows(tmp_path):
    (tmp_path / "a-file").touch()
    expected = {
        "a-file": "is a file: give the directory that has the checkpoint's config.json",
        "gone": "does not exist",
        ".": "has no config.json",
    }
    for name, words in expected.items():
        with pytest.raises(FatalError, match=words):
            engine_config({"model": str(tmp_path / name)})
    with pytest.raises(FatalError, match="does not exist"):
        engine_config({"model": "some/hub-id", "tokenizer": str(tmp_path / "gone")})
    assert engine_config({"model": "some/hub-id", "max_num_seqs": 3}).scheduler.max_num_seqs == 3


def test_too_few_addresses_for_libraries_are_told_before_they_are_loaded(tmp_path):
    (tmp_path / "config.json").touch()
    program = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30)); "
        "from services.cli.main import main; main()"
    )
    command = [sys.executable, "-c", program, "engine", str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == ExitCode.STARTUP
    assert "is limited to 1024 MiB (`ulimit -v`), and an engine takes 1792 MiB before its model" in result.stderr
    assert "load libraries" not in result.stdout + result.stderr


@pytest.mark.parametrize(
    ("variable", "given", "kept"),
    [
        ("/var/cache/me", {}, "/var/cache/me/ringline"),
        ("/var/cache/me", {"kernel_cache_dir": "/kernels"}, "/kernels"),
        ("relative", {}, None),  # the engine's own default, as without the variable
        ("", {}, None),
    ],
)
def test_compiled_kernels_are_kept_where_xdg_says(variable, given, kept, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", variable)
    assert engine_config({"model": "some/hub-id", **given}).device.kernel_cache_dir == kept


@pytest.mark.parametrize(
    "wrong",
    [
        {"limit_mm_per_prompt": "image=2"},
        {"limit_mm_per_prompt": '{"video": 1}'},
        {"mm_processor_kwargs": "max_pixels=1003520"},
        {"override_generation_config": "top_k=1"},
    ],
)
def test_a_wrong_object_is_refused_before_libraries_are_loaded(wrong):
    with pytest.raises(click.UsageError, match="expected a JSON object"):
        engine_config({"model": "some/hub-id", **wrong})
