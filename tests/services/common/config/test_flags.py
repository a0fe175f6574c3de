"""Options as flags and variables of a command: which wins, what is refused in which words, what the help shows."""

import click
import pytest
from click.testing import CliRunner

from engine_core.config import EngineConfig, ModelConfig
from engine_core.errors import ConfigError
from services.common.config.flags import COMMON_OPTIONS, SettingsCommand, given_options, with_settings
from services.common.config.options import settings_of
from services.common.config.settings import (
    DetokenizerSettings,
    EngineServiceSettings,
    GatewaySettings,
    ProcessorSettings,
)
from services.common.config.stack_settings import StackSettings


@with_settings(settings_of(DetokenizerSettings()))
@click.command(cls=SettingsCommand)
def sample(**options):
    """A command with a detokenizer's options."""
    return given_options(options)


@pytest.mark.parametrize(
    ("arguments", "variables", "values"),
    [
        ([], {}, {}),
        (["--port", "7", "--engines=a:1,b:2"], {}, {"port": 7, "engines": ("a:1", "b:2")}),
        ([], {"RINGLINE_PORT": "7", "RINGLINE_METRICS": "no"}, {"port": 7, "metrics": False}),
        (["--port", "8", "--metrics"], {"RINGLINE_PORT": "7", "RINGLINE_METRICS": "no"}, {"port": 8, "metrics": True}),
        (["--no-metrics", "--max-message-bytes", "4MiB"], {}, {"metrics": False, "max_message_bytes": 4 * 2**20}),
    ],
)
def test_flags_win_over_variables_and_what_is_not_given_is_left_to_the_defaults(
    arguments, variables, values, monkeypatch
):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert sample.main(arguments, standalone_mode=False) == values


@pytest.mark.parametrize(
    ("arguments", "variables", "words"),
    [
        (["--port", "x"], {}, "--port (RINGLINE_PORT): 'x' is not usable: expected an integer from 0 to 65535"),
        (
            [],
            {"RINGLINE_METRICS": "maybe"},
            "--metrics (RINGLINE_METRICS): 'maybe' is not usable: expected true or false",
        ),
        ([], {"RINGLINE_LOG_LEVEL": "loud"}, "--log-level (RINGLINE_LOG_LEVEL): 'loud' is not usable: expected one of"),
    ],
)
def test_a_wrong_value_names_flag_variable_value_and_what_is_accepted(arguments, variables, words, monkeypatch):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(click.BadParameter) as caught:
        sample.main(arguments, standalone_mode=False)
    assert words in caught.value.format_message()


def shown(*arguments):
    """What the sample prints."""
    return CliRunner().invoke(sample, arguments, terminal_width=200, max_content_width=200).output


def test_help_shows_what_most_people_need_and_where_the_rest_is():
    short = shown("--help")
    assert "Common options:" in short
    assert "[default: 50071]" in short
    assert "RINGLINE_ANY_OPTION" in short
    assert "--stall-timeout" not in short
    count = len(settings_of(DetokenizerSettings()))
    assert f"--help-all shows all {count} options" in short


def test_all_of_the_help_has_every_option_in_its_section():
    whole = shown("--help-all")
    assert "Address, connections and limits:" in whole
    assert "--metrics / --no-metrics" in whole
    assert all(setting.flag in whole for setting in settings_of(DetokenizerSettings()))
    assert "--help-all shows" not in whole


def test_common_options_are_options_of_some_service():
    services = (EngineConfig(), EngineServiceSettings(), ProcessorSettings(), GatewaySettings(), StackSettings())
    assert set(COMMON_OPTIONS) <= {setting.name for defaults in services for setting in settings_of(defaults)}


@with_settings(settings_of(EngineConfig()))
@click.command(cls=SettingsCommand)
def engine_sample(**options):
    """A command with an engine's options."""
    return given_options(options)


def test_the_name_of_a_checkpoints_own_quantization_is_answered_with_what_to_do() -> None:
    """vLLM takes it."""
    result = CliRunner().invoke(engine_sample, ["--quantization", "awq"])
    assert result.exit_code == 2
    expected = "expected one of int8, int4; leave the option out for a checkpoint that is quantized already"
    assert f"'awq' is not usable: {expected}" in result.output
    with pytest.raises(ConfigError, match=expected):
        ModelConfig(quantization="awq")
