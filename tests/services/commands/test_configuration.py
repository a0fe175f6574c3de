"""docs/configuration.md says what the options say."""

from pathlib import Path

from services.commands.config_docs import configuration_document
from services.commands.serve import stack_settings

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "configuration.md"


def test_the_document_is_as_the_declarations_generate_it():
    assert DOCUMENT.read_text() == configuration_document(), "run `ringline config-docs > docs/configuration.md`"


def test_every_option_of_a_stack_is_in_it():
    text = configuration_document()
    for setting in stack_settings():
        assert f"`{setting.flag}`" in text
        assert f"`{setting.variable}`" in text
        assert setting.declared.help in text
