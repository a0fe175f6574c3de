"""``LoRARequest``, and which prompts of a call have which adapter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine_core.errors import ConfigError, InvalidRequestError
from engine_core.offline.lora import LoRARequest, OpenAdapters

BLUE = LoRARequest("blue", 1, "adapters/blue")


def test_a_request_is_written_as_for_vllm() -> None:
    named = LoRARequest(
        lora_name="blue", lora_int_id=1, lora_path=Path("adapters/blue"), base_model_name="m", load_inplace=True
    )
    assert (named.name, named.adapter_id, named.path) == ("blue", 1, "adapters/blue")
    assert (BLUE.name, BLUE.adapter_id, BLUE.path, BLUE.base_model_name) == ("blue", 1, "adapters/blue", None)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("", 1, "a"), "lora_name"),
        (("blue", 0, "a"), "lora_int_id=0 .*at least 1"),
        (("blue", "a"), "lora_int_id='a'"),
        (("blue", 1), "lora_path='' .*directory of an adapter"),
    ],
)
def test_a_request_that_names_no_adapter_is_refused(arguments: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LoRARequest(*arguments)


@pytest.mark.parametrize(
    ("requests", "error", "message"),
    [
        ([None], ValueError, "the number of lora_request is 1, that of prompts is 2"),
        ([BLUE] * 3, ValueError, "the number of lora_request is 3, that of prompts is 2"),
        ("blue", TypeError, "lora_request is of type str; expected LoRARequest, or a list of them"),
        (["blue", None], TypeError, "expected LoRARequest, or a list of them"),
        (BLUE, InvalidRequestError, r"expected LLM\(…, enable_lora=True\)"),
        ([None, BLUE], InvalidRequestError, r"expected LLM\(…, enable_lora=True\)"),
    ],
)
def test_what_cannot_be_the_adapters_of_two_prompts(requests: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        OpenAdapters(None).of(requests, 2)


def test_prompts_without_adapters_need_no_option() -> None:
    assert OpenAdapters(None).of(None, 2) == OpenAdapters(None).of([None, None], 2) == [None, None]
