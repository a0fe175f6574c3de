import pytest

from tests.text_core import trained_tokenizers


@pytest.fixture(scope="session")
def byte_level():
    return trained_tokenizers.byte_level()


@pytest.fixture(scope="session")
def sentencepiece_bpe():
    return trained_tokenizers.sentencepiece_bpe()


@pytest.fixture(scope="session")
def unigram():
    return trained_tokenizers.unigram()
