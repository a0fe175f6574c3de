"""docs/openai.md says of every field what its declaration says."""

from services.gateway.endpoints import ENDPOINTS
from tests.docs import api_fields


def test_the_tables_are_as_the_declarations_generate_them() -> None:
    assert api_fields.written() == api_fields.tables(), "run `python -m tests.docs.api_fields`"


def test_every_endpoint_of_an_api_is_in_them() -> None:
    prefixes = ("/v1/", "/tokenize", "/detokenize")
    posts = {one.path for one in ENDPOINTS if one.method == "POST" and one.path.startswith(prefixes)}
    assert {path for path in posts if "{" not in path} == api_fields.ENDPOINTS.keys()
