"""A part of the ``tokenizers`` library that panics, as none of it should."""

from __future__ import annotations

from typing import NoReturn

from tokenizers import Encoding, Tokenizer, models


def panic(*args: object, **options: object) -> NoReturn:
    """Raises what a panic of the library raises: no ``Exception``."""
    encoding: Encoding = Tokenizer(models.BPE(vocab={"a": 0}, merges=[])).encode("aa")
    encoding.truncate(1, stride=2)
    raise AssertionError("it did not panic")


class Panicking:
    """Stands for any object of the library. It has every token."""

    def id_to_token(self, token_id: int) -> str:
        return "a"

    def __getattr__(self, name: str) -> object:
        return panic
