import pytest

from tests.services.text import trained


@pytest.fixture(scope="session")
def byte_level():
    return trained.byte_level()


@pytest.fixture(scope="session")
def sentencepiece_bpe():
    return trained.sentencepiece_bpe()


@pytest.fixture(scope="session")
def unigram():
    return trained.unigram()
