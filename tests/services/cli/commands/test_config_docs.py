"""docs/reference/configuration.md says what the options say."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from engine_core.config import EngineConfig
from services.cli.commands.config_docs import config_docs
from services.cli.commands.serve import stack_settings
from services.common.config.options import SettingError, settings_of

TEXT = (Path(__file__).resolve().parents[4] / "docs" / "reference" / "configuration.md").read_text()


def test_the_document_is_as_the_declarations_generate_it():
    assert CliRunner().invoke(config_docs).output == TEXT, (
        "run `ringline config-docs > docs/reference/configuration.md`"
    )


def test_every_option_of_a_stack_is_in_it():
    for setting in stack_settings():
        assert f"`{setting.flag}`" in TEXT
        assert f"`{setting.variable}`" in TEXT
        assert setting.help in TEXT


def test_the_words_for_yes_and_no_are_those_that_are_read():
    [setting] = [each for each in settings_of(EngineConfig()) if each.name == "enable_prefix_caching"]
    words = re.search(r"its variable\s+takes `true` or `false` \(or (.*), and (.*)\)", TEXT)
    yes, no = (re.findall("`(.*?)`", group) for group in words.groups())
    assert {setting.parse(word) for word in ["true", *yes]} == {True}
    assert {setting.parse(word) for word in ["false", *no]} == {False}
    assert (len(yes), len(no)) == (3, 3)
    with pytest.raises(SettingError):
        setting.parse("y")
