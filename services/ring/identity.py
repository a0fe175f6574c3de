"""Identities on the ring (peers, ring ids) and what a Hello negotiates (version, capabilities)."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from services.ring.errors import Code, Reason, Refused, invalid_field

PEER_NAME = re.compile(r"[A-Za-z0-9._-]{1,128}")
ADAPTER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@/+-]{0,127}")
ADAPTER_DIGEST = re.compile(r"[0-9a-f]{64}")
GATEWAY_HEADER = "x-ringline-gateway"
"""Metadata key under which a gateway tells processors its name."""
MIN_VERSION, MAX_VERSION = 1, 1
"""The contract versions that this code speaks."""
MAX_REQUEST_ID_LENGTH = 64
CONSTRAINT, FORM_BESIDE_TOOLS, REASONING_BUDGET = "constraint", "form_beside_tools", "reasoning_budget"
MEDIA, NO_REPEAT_NGRAM, BEAM_SEARCH = "media", "no_repeat_ngram", "beam_search"
POOLING = "pooling"
ADAPTERS = "adapters"
PARSE, ANSWER_STOPS, CONTENT_TOKENS = "parse", "answer_stops", "content_tokens"
FORMAT_CAPABILITIES = (
    "calls.apertus",
    "calls.cohere",
    "calls.deepseek_v32",
    "calls.functionary",
    "calls.functionary_v32",
    "calls.functiongemma",
    "calls.functools",
    "calls.gemma4",
    "calls.gigachat3",
    "calls.gigachat3_roles",
    "calls.glm45",
    "calls.granite",
    "calls.hunyuan_a13b",
    "calls.hy3",
    "calls.internlm2",
    "calls.kimi_k2",
    "calls.kimi_k3",
    "calls.lfm2",
    "calls.minicpm5",
    "calls.minimax_m1",
    "calls.minimax_m2",
    "calls.minimax_m3",
    "calls.nemotron_json",
    "calls.olmo3",
    "calls.phi4_mini_json",
    "calls.qwen3_coder",
    "calls.seed_oss",
    "calls.solar_open",
    "calls.xlam",
    "reasoning.apertus",
    "reasoning.apriel",
    "reasoning.cohere",
    "reasoning.gemma4",
    "reasoning.hy3",
    "reasoning.kimi_k3",
    "reasoning.kimi_vl",
    "reasoning.minimax_m3",
    "reasoning.mistral",
    "reasoning.seed_oss",
    "reasoning.solar_open",
)
"""Of services that know all formats of calls and reasoning; those of the first release have none."""
GRAMMAR_CAPABILITIES = (CONSTRAINT, FORM_BESIDE_TOOLS, *FORMAT_CAPABILITIES)
"""Capabilities of engines that can use grammars."""
ENGINE_CAPABILITIES = (
    "generate",
    "prompt_logprobs",
    REASONING_BUDGET,
    NO_REPEAT_NGRAM,
    BEAM_SEARCH,
    *GRAMMAR_CAPABILITIES,
)
"""Capabilities of engines of this version; an engine whose model sees pictures has ``MEDIA``, too,
and one that serves adapters ``ADAPTERS``."""
DETOKENIZER_CAPABILITIES = (PARSE, ANSWER_STOPS, CONTENT_TOKENS, BEAM_SEARCH, *FORMAT_CAPABILITIES)
"""Capabilities of every detokenizer of this version."""
PROCESSOR_CAPABILITIES = ("resume", "pieces", PARSE, ANSWER_STOPS, CONTENT_TOKENS)
"""Capabilities that a processor of this version adds."""
CHAT_CAPABILITIES = ("chat", "tools")
"""Those it adds for models with a chat template."""
MAX_REQUIRED_CAPABILITIES, MAX_CAPABILITY_BYTES = 64, 64


@dataclass(frozen=True, slots=True)
class PeerId:
    """One life of a process. A newer incarnation of the same name supersedes an older one."""

    name: str
    incarnation: int


def ring_id(incarnation: int, counter: int) -> str:
    """A request's id on the ring; unique as long as incarnations are."""
    return f"{incarnation}-{counter}"


def check_adapter_name(field: str, name: str) -> None:
    """Raise ``Refused`` for what is no name of an adapter, given in ``field``."""
    if ADAPTER_NAME.fullmatch(name) is None:
        accepted = "1 to 128 characters of [A-Za-z0-9._@/+-], the first a letter or a digit"
        raise invalid_field(field, f"{name[:200]!r} is not a name: expected {accepted}")


def is_ring_id_of(request_id: str, incarnation: int) -> bool:
    """Whether a submitter of this incarnation may use ``request_id``: no peer can name another's request."""
    prefix, _, counter = request_id.partition("-")
    return (
        len(request_id) <= MAX_REQUEST_ID_LENGTH
        and prefix == str(incarnation)
        and counter.isascii()
        and counter.isdigit()
    )


def negotiate(name: str, incarnation: int, min_version: int, max_version: int) -> int:
    """The highest contract version that both sides speak, from the fields of a Hello; raises ``Refused``."""
    if not PEER_NAME.fullmatch(name):
        problem = f"{name[:200]!r} is not a name: expected 1 to 128 characters of [A-Za-z0-9._-]"
        raise invalid_field("hello.name", problem)
    if incarnation == 0:
        problem = "0 is not an incarnation: expected a number that grows with every start, such as the time"
        raise invalid_field("hello.incarnation", problem)
    version = min(max_version, MAX_VERSION)
    if version < max(min_version, MIN_VERSION):
        spoken = f"speaks versions {min_version} to {max_version}" if max_version else "names no version"
        raise Refused(
            Code.FAILED_PRECONDITION,
            f"hello: {name} {spoken} of the contract: expected one of {MIN_VERSION} to {MAX_VERSION}",
            reason=Reason.VERSION_MISMATCH,
        )
    return version


def check_requires(required: Sequence[str], known: Collection[str]) -> None:
    """Raise ``Refused`` for the first capability that is not ``known``: ignoring one could change the output."""
    if len(required) > MAX_REQUIRED_CAPABILITIES:
        raise invalid_field("requires", f"{len(required)} names: expected at most {MAX_REQUIRED_CAPABILITIES}")
    for index, name in enumerate(required):
        field, size = f"requires[{index}]", len(name.encode())
        if size > MAX_CAPABILITY_BYTES:
            raise invalid_field(field, f"{size} bytes: expected at most {MAX_CAPABILITY_BYTES}")
        if name not in known:
            message = f"{field}: {name!r} is not known here: expected some of {', '.join(sorted(known))}"
            raise Refused(Code.FAILED_PRECONDITION, message, reason=Reason.CAPABILITY_MISSING, field=field)
