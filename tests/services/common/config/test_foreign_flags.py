"""Flags of other programs on a command's line."""

import click
import pytest

from services.common.config.flags import SettingsCommand, given_options, ignored_flags, with_settings
from services.common.config.foreign_flags import Alias, NoEffect, table
from services.common.config.options import settings_of
from services.common.config.settings import ProcessorSettings

FOREIGN = table(
    {
        ("p", "door"): Alias("port", {"any": "0", "usual": None}),
        ("measure",): Alias("metrics"),
        ("v",): Alias("log_level", value="debug"),
        ("log_level",): Alias("log_level", {"verbose": "debug"}),
        ("a", "names"): Alias("name", others="engines", by_commas=True),
        ("swap",): NoEffect("nothing is swapped", takes_value=True),
        ("stats", "no_x"): NoEffect("nothing is counted"),
        ("mode",): NoEffect("it is so", takes_value=True, only=("auto",), otherwise="is not supported: it is so"),
        ("fa",): NoEffect("it is so", only=("on", "off")),
        ("lora",): "is not supported: merge it",
        ("model_len",): Alias("max_model_len"),
    }
)


@with_settings(settings_of(ProcessorSettings()))
@click.command(cls=SettingsCommand, foreign=FOREIGN)
@click.argument("model", required=False)
def sample(model, **options):
    """A command with a processor's options and an argument."""
    return {"model": model} if model else {}, given_options(options), ignored_flags()


@pytest.mark.parametrize(
    ("line", "options"),
    [
        ("-p 7", {"port": 7}),
        ("-p7", {"port": 7}),
        ("--door=7", {"port": 7}),
        ("--door any", {"port": 0}),
        ("--door usual", {}),
        ("--measure", {"metrics": True}),
        ("--no-measure", {"metrics": False}),
        ("-v", {"log_level": "debug"}),
        ("--log-level verbose", {"log_level": "debug"}),
        ("--log-level=error", {"log_level": "error"}),
        ("--host -v", {"host": "-v"}),
    ],
)
def test_a_flag_of_another_program_sets_our_option(line, options):
    assert sample.main(line.split(), standalone_mode=False) == ({}, options, {})


@pytest.mark.parametrize(
    ("line", "model", "options"),
    [
        ("m -a x", "m", {"name": "x"}),
        ("m --names x y z", "m", {"name": "x", "engines": ("y", "z")}),
        ("m --names x y --port 3", "m", {"name": "x", "engines": ("y",), "port": 3}),
        ("-a x,y m", "m", {"name": "x", "engines": ("y",)}),
        ("-a x m", "m", {"name": "x"}),
    ],
)
def test_several_names_follow_a_flag_after_the_model(line, model, options):
    assert sample.main(line.split(), standalone_mode=False) == ({"model": model}, options, {})


@pytest.mark.parametrize(
    ("line", "ignored"),
    [
        ("--swap 4 --port 3", {"--swap": "nothing is swapped"}),
        ("--swap=4 --port 3", {"--swap": "nothing is swapped"}),
        ("--swap 1 2 3 --port 3", {"--swap": "nothing is swapped"}),
        ("--stats --port 3", {"--stats": "nothing is counted"}),
        ("--no-x --port 3", {"--no-x": "nothing is counted"}),
        ("--mode auto --port 3", {"--mode": "it is so"}),
        ("-fa on --port 3", {"-fa": "it is so"}),
        ("-fa --port 3", {"-fa": "it is so"}),
    ],
)
def test_a_flag_without_effect_is_taken_with_its_value(line, ignored):
    assert sample.main(line.split(), standalone_mode=False) == ({}, {"port": 3}, ignored)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--mode fast", "--mode fast is not supported: it is so."),
        ("--lora f", "--lora is not supported: merge it."),
        ("--no-lora", "--no-lora is not supported: merge it."),
        ("--model-len 3", "--model-len is called --max-model-len here, and is no option of `sample`."),
        ("-p x", "'x' is not usable: expected an integer from 0 to 65535"),
        ("-p", "Option '--port' requires an argument."),
    ],
)
def test_a_flag_that_would_change_a_result_is_refused_in_words(line, message):
    with pytest.raises(click.UsageError) as caught:
        sample.main(line.split(), prog_name="sample", standalone_mode=False)
    assert message in caught.value.format_message()


def test_what_follows_two_dashes_is_no_flag():
    assert sample.main(["--", "-v"], standalone_mode=False) == ({"model": "-v"}, {}, {})
