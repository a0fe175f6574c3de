"""Fields that set an answer's form in other APIs: refused by name, as they would change the result."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from services.gateway.fields import refused
from services.gateway.other_servers import OtherServers

INSTEAD = "the form of an answer is text.format in Responses, output_config.format in Messages"


class Within(msgspec.Struct, omit_defaults=True):
    """``text`` or ``output_config`` at endpoints without it: proxies send its other fields, such as ``effort``."""

    format: Any = None


NO_FORM = (Within(), Within({"type": "text"}))


class OtherForms(OtherServers):
    """Form fields of chats and completions, and of other servers."""

    response_format: Annotated[Any, refused(INSTEAD, {"type": "text"})] = None
    structured_outputs: Annotated[Any, refused(INSTEAD, {})] = None
    guided_json: Annotated[Any, refused(INSTEAD)] = None
    guided_regex: Annotated[Any, refused(INSTEAD)] = None
    guided_choice: Annotated[Any, refused(INSTEAD)] = None
    guided_grammar: Annotated[Any, refused(INSTEAD)] = None
    guided_json_object: Annotated[Any, refused(INSTEAD, False)] = None
    json_schema: Annotated[Any, refused(INSTEAD)] = None
    regex: Annotated[Any, refused(INSTEAD)] = None
    ebnf: Annotated[Any, refused(INSTEAD)] = None
    grammar: Annotated[Any, refused(INSTEAD, "")] = None
    format: Annotated[Any, refused(INSTEAD, "")] = None
    nvext: Annotated[Any, refused(INSTEAD, {})] = None
