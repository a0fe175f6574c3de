"""Options: what a text means, what is refused and in which words, and that settings are built from them."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_core.config import CacheConfig, ConfigError, EngineConfig
from services.common.config.options import (
    SettingError,
    arguments,
    build,
    check_section,
    given_options,
    option,
    settings_of,
)
from services.common.config.security_settings import ClientAuthSettings


@dataclass(frozen=True)
class Inner:
    size: int | None = option(None, "A size.", minimum=1, unit="bytes")
    share: float = option(0.5, "A share.", minimum=0.0, maximum=1.0)
    names: tuple[str, ...] = option(("a", "b"), "Names.")

    def __post_init__(self):
        check_section(self)


@dataclass(frozen=True)
class Outer:
    inner: Inner = field(default_factory=Inner)
    count: int = option(3, "A count.", minimum=-2, maximum=7)
    fast: bool = option(True, "Throughput.")
    mode: str = option("x", "A mode.", choices=("x", "y"))
    note: str | None = option(None, "Anything.")


BY_NAME = {setting.name: setting for setting in settings_of(Outer())}


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("size", "1048576", 2**20),
        ("size", "512MiB", 512 * 2**20),
        ("size", " 1.5 gib ", 3 * 2**29),
        ("size", "2GB", 2 * 10**9),
        ("share", "1e-3", 0.001),
        ("names", "a, b ,c", ("a", "b", "c")),
        ("fast", "No", False),
        ("fast", "1", True),
    ],
)
def test_a_text_means_a_value(name, text, value):
    assert BY_NAME[name].parse(text) == value


@pytest.mark.parametrize(
    ("name", "text", "accepted"),
    [
        ("size", "512 cats", "a number of bytes (such as 1048576, 512MiB or 4GiB), at least 1"),
        ("size", "0", "a number of bytes (such as 1048576, 512MiB or 4GiB), at least 1"),
        ("share", "nan", "a number from 0 to 1"),
        ("share", "1.01", "a number from 0 to 1"),
        ("count", "2.0", "an integer from -2 to 7"),
        ("count", "8", "an integer from -2 to 7"),
        ("fast", "maybe", "true or false"),
        ("mode", "z", "one of x, y"),
    ],
)
def test_a_wrong_text_is_refused_with_the_option_the_text_and_what_is_accepted(name, text, accepted):
    with pytest.raises(SettingError) as caught:
        BY_NAME[name].parse(text)
    assert (caught.value.option, caught.value.value, caught.value.accepted) == (name, text, accepted)
    assert str(caught.value) == f"{name}={text!r} is not usable: expected {accepted}"


@given(
    st.integers(1, 2**45), st.floats(0, 1), st.integers(-2, 7), st.booleans(), st.lists(st.text("ab:./", min_size=1))
)
def test_arguments_are_read_back_as_the_values_they_were_made_of(size, share, count, fast, names):
    values = {"size": size, "share": share, "count": count, "fast": fast, "names": tuple(names)}
    given_flags = dict(flag.partition("=")[::2] for flag in arguments(BY_NAME.values(), values))
    assert given_flags.pop("--fast" if fast else "--no-fast") == ""
    read = {flag.removeprefix("--"): BY_NAME[flag.removeprefix("--")].parse(text) for flag, text in given_flags.items()}
    assert read | {"fast": fast} == values


def test_settings_are_rebuilt_with_the_given_values_at_any_depth():
    built = build(Outer(), {"size": 7, "mode": "y", "stranger": 1})
    assert built == Outer(inner=Inner(size=7), mode="y")


def test_a_value_that_did_not_come_from_a_text_is_checked_too():
    with pytest.raises(SettingError, match="share=2 is not usable: expected a number from 0 to 1"):
        build(Outer(), {"share": 2})


def test_the_engines_options_are_the_same_kind_of_thing():
    """The engine declares its options without this package; both must agree on values and refusals."""
    config = build(EngineConfig(), {"block_size": 32, "dtype": "float32"})
    assert config.cache == CacheConfig(block_size=32)
    assert config.model.dtype == "float32"
    by_name = {setting.name: setting for setting in settings_of(config)}
    for name, text in [("block_size", "0"), ("gpu_memory_utilization", "nan"), ("policy", "random")]:
        with pytest.raises(SettingError):
            by_name[name].parse(text)
        with pytest.raises(ConfigError):
            build(EngineConfig(), {name: by_name[name].kind(text) if text != "random" else text})


def test_an_empty_list_of_secrets_is_no_value() -> None:
    """As of a shell's variable that is not set: the service would be open to all."""
    by_name = {setting.name: setting for setting in settings_of(ClientAuthSettings())}
    for text in ("", " "):
        with pytest.raises(SettingError):
            by_name["api_key"].parse(text)
    assert by_name["auth_jwt_algorithms"].parse("RS256, ES256") == ("RS256", "ES256")


def test_options_that_differ_from_their_defaults_are_shown_but_for_secrets():
    @dataclass(frozen=True)
    class Door:
        api_key: str | None = option(None, "A key.", secret=True)

    changed = Outer(Inner(size=2**20), fast=False, note="https://me:sesame@host/x two words")
    note = "--note=https://...@host/x two words"
    assert given_options(changed, Door("sesame")) == ["--size=1MiB", "--no-fast", note, "--api-key=..."]
    assert given_options(Outer(), Door()) == []
