"""What a 404 says of the paths of other servers."""

import re

import pytest

from services.gateway.endpoints import ENDPOINTS
from services.gateway.other_paths import OTHER_PATHS, path_advice

OPERATIONS = {"/health", "/live", "/version", "/metrics"}
SERVED = {endpoint.path for endpoint in ENDPOINTS} | OPERATIONS


def test_advice_is_of_paths_that_are_not_served_and_names_paths_that_are() -> None:
    assert not OTHER_PATHS.keys() & SERVED
    named = {
        path for advice in [*OTHER_PATHS.values(), path_advice("/")] for path in re.findall(r"(?<!\w)/[\w/]+", advice)
    }
    assert named - {"/v1"} <= SERVED
    assert len(named) > 5


@pytest.mark.parametrize(
    ("path", "advice"),
    [
        ("/slots/0", "/metrics what runs"),
        ("/v1/audio/speech", "text is the only modality"),
        ("/v1/health", "/health says whether"),
        ("/v1/v1/chat/completions", "leave it out of the base URL"),
        ("/models/load", "the base URL ends with /v1"),
        ("/load_lora_adapter", "/v1/load_lora_adapter and"),
        ("/adapters/blue", "/v1/unload_lora_adapter load and unload"),
        ("/v1/audiobooks", "docs/reference/openai.md lists"),
        ("/", "docs/reference/openai.md lists"),
        ("/" * 60_000, "docs/reference/openai.md lists"),
    ],
)
def test_a_path_is_advised_on_by_the_nearest_one_above_it(path: str, advice: str) -> None:
    assert advice in path_advice(path)
