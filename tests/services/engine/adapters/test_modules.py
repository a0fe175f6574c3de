"""The option ``--lora-modules``, in vLLM's forms."""

from __future__ import annotations

import pytest

from engine_core.errors import ConfigError
from services.engine.adapters.modules import LoRAModule, lora_modules


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
