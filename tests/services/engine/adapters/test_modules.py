"""The option ``--lora-modules``, in vLLM's forms."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine_core.config import LoRAConfig
from engine_core.errors import ConfigError
from services.common.config.settings import AdapterSettings
from services.engine.adapters.modules import LoRAModule, check_adapters, lora_modules


@pytest.mark.parametrize(
    ("text", "modules"),
    [
        ("", []),
        ("a=/x", [LoRAModule("a", "/x")]),
        ("a=/x, org/b=rel/y ,", [LoRAModule("a", "/x"), LoRAModule("org/b", "rel/y")]),
        ("a=/x=y", [LoRAModule("a", "/x=y")]),
        ('{"name": "a", "path": "/x, y"}', [LoRAModule("a", "/x, y")]),
        (
            '{"name": "a", "path": "/x", "base_model_name": "base"},b=/y,{"name":"c","path":"z"}',
            [LoRAModule("a", "/x", "base"), LoRAModule("b", "/y"), LoRAModule("c", "z")],
        ),
        (
            '[{"name": "a", "path": "/x"}, {"name": "b", "path": "/y"}]',
            [LoRAModule("a", "/x"), LoRAModule("b", "/y")],
        ),
    ],
)
def test_each_form_is_read(text: str, modules: list[LoRAModule]) -> None:
    assert lora_modules(text) == modules


@pytest.mark.parametrize(
    ("text", "accepted"),
    [
        ("a", "name=path"),
        ("a=", "name=path"),
        ("=x", "names of 1 to 128"),
        (".a=/x", "names of 1 to 128"),
        ("a=/x,a=/y", "a comes twice"),
        ('{"name": "a"}', "name=path"),
        ('{"name": "a", "path": 3}', "name=path"),
        ('{"name": "a", "path": "/x", "rank": 8}', "base_model_name, name, path"),
        ('{"name": "a", ', "name=path"),
        ("[" * 100_000, "name=path"),
        ("[3]", "base_model_name, name, path"),
    ],
)
def test_what_cannot_be_read_is_refused(text: str, accepted: str) -> None:
    with pytest.raises(ConfigError) as error:
        lora_modules(text)
    assert error.value.option == "lora_modules"
    assert accepted in error.value.accepted


def test_options_with_which_no_engine_would_start_are_refused_before(tmp_path: Path) -> None:
    here, missing = str(tmp_path), str(tmp_path / "missing")
    check_adapters(AdapterSettings(), LoRAConfig())
    check_adapters(AdapterSettings(lora_modules=f"a={here}", lora_dir=here), LoRAConfig(enable_lora=True))
    for given, enabled, accepted in (
        (AdapterSettings(lora_modules=f"a={here}"), False, "--enable-lora"),
        (AdapterSettings(lora_dir=here), False, "--enable-lora"),
        (AdapterSettings(lora_modules="a"), True, "name=path"),
        (AdapterSettings(lora_modules=f"a={here},b={missing}"), True, "of the hub must be downloaded before"),
        (AdapterSettings(lora_dir=missing), True, "a folder that can be read"),
    ):
        with pytest.raises(ConfigError, match=accepted):
            check_adapters(given, LoRAConfig(enable_lora=enabled))
