"""Defaults of sampling: the checkpoint's, and those of options."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine_core.config import ModelConfig
from engine_core.errors import CheckpointError, ConfigError
from engine_core.model_loader.generation_config import default_sampling, overrides

FILE = {"temperature": 0.6, "top_k": 20, "top_p": None, "eos_token_id": 3}


@pytest.mark.parametrize(
    ("options", "defaults"),
    [
        ({}, {"temperature": 0.6, "top_k": 20}),
        ({"generation_config": "none"}, {}),
        ({"override_generation_config": '{"top_k": 0, "min_p": 0.5}'}, {"temperature": 0.6, "top_k": 0, "min_p": 0.5}),
        ({"generation_config": "none", "override_generation_config": '{"temperature": 0}'}, {"temperature": 0}),
        ({"override_generation_config": '{"top_k": -1}'}, {"temperature": 0.6, "top_k": 0}),
        ({"override_generation_config": "{}"}, {"temperature": 0.6, "top_k": 20}),
    ],
)
def test_options_win_over_the_checkpoint(options: dict[str, Any], defaults: dict[str, float]) -> None:
    assert default_sampling(Path("m.json"), FILE, ModelConfig(model="m", **options)) == defaults


@pytest.mark.parametrize(
    ("options", "file", "defaults"),
    [
        ({}, {"eos_token_id": 3}, {"temperature": 0.2, "top_p": 0.9}),
        ({}, {"top_k": 20}, {"top_k": 20}),
        ({"generation_config": "none"}, {}, {}),
        ({"override_generation_config": '{"temperature": 1}'}, {}, {"temperature": 1, "top_p": 0.9}),
        ({"served_model_name": "another"}, {}, {"temperature": 0.2, "top_p": 0.9}),
    ],
)
def test_a_model_of_a_package_samples_as_its_card_advises(
    options: dict[str, Any],
    file: dict[str, Any],
    defaults: dict[str, float],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert default_sampling(Path("m.gguf"), file, ModelConfig(model="smollm2", **options)) == defaults
    (tmp_path / "smollm2").mkdir()  # a directory comes before it, and is another model
    assert default_sampling(Path("m.gguf"), {}, ModelConfig(model="smollm2")) == {}


@pytest.mark.parametrize(("top_k", "default"), [(0, 0), (-1, 0), (50.0, 50), (2**31 - 1, 2**31 - 1)])
def test_top_k_of_the_file(top_k: float, default: int) -> None:
    assert default_sampling(Path("m.json"), {"top_k": top_k}, ModelConfig(model="m")) == {"top_k": default}


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("temperature", "hot", "temperature='hot' is not a number"),
        ("temperature", -1, "temperature: is -1; expected at least 0"),
        ("top_p", 0.0, "top_p: is 0.0; expected more than 0 and at most 1"),
        ("top_p", 1.1, "top_p: is 1.1; expected more than 0 and at most 1"),
        ("top_k", -2, "top_k: is -2; expected an integer"),
        ("top_k", 2**31, "top_k: is 2147483648; expected an integer below"),
        ("min_p", 2, "min_p: is 2; expected from 0 to 1"),
        ("repetition_penalty", 0, "repetition_penalty: is 0; expected at least"),
    ],
)
def test_a_default_of_the_file_is_refused_if_no_request_could_have_it(field: str, value: Any, words: str) -> None:
    file, generation = Path("m.json"), {field: value, "min_p": 0.25} | {field: value}
    otherwise = "; --override-generation-config gives another value, --generation-config none passes over the file's"
    with pytest.raises(CheckpointError, match=f"^m.json: default of sampling: {words}.*{otherwise}$"):
        default_sampling(file, generation, ModelConfig(model="m"))
    assert default_sampling(file, generation, ModelConfig(model="m", generation_config="none")) == {}
    won = ModelConfig(model="m", override_generation_config=json.dumps({field: 1}))
    assert default_sampling(file, generation, won) == {"min_p": 0.25} | {field: 1}


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("temperature=1", "a JSON object with numbers for any of temperature, top_k"),
        ([], "a JSON object with numbers"),
        ({"max_new_tokens": 3}, "a JSON object with numbers"),
        ({"temperature": "hot"}, "a JSON object with numbers"),
        ({"temperature": True}, "a JSON object with numbers"),
        ('{"temperature": NaN}', "a JSON object with numbers"),
        ({"temperature": 10**400}, "temperature: is .*; expected at least 0 and less than"),
        ({"top_k": -2}, "top_k: is -2; expected an integer below 2\\^31, 0 or -1 for all tokens"),
        ({"top_k": 1.5}, "top_k: is 1.5; expected an integer"),
        ({"temperature": -1}, "temperature: is -1; expected at least 0"),
        ({"top_p": 0}, "top_p: is 0; expected more than 0"),
        ({"min_p": 2}, "min_p: is 2; expected from 0 to 1"),
        ({"repetition_penalty": 0}, "repetition_penalty: is 0; expected at least"),
    ],
)
def test_a_default_that_no_request_could_have_is_refused(value: Any, words: str) -> None:
    text = value if isinstance(value, str) else json.dumps(value)
    with pytest.raises(ConfigError, match=f"^override_generation_config=.* is not usable: expected .*{words}"):
        overrides(ModelConfig(model="m", override_generation_config=text))
