"""Requests that name adapters, and the right answer of each with every contents that its name may stand for."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ringline import AsyncClient

from engine_core.llm import LLM, LoRARequest, SamplingParams
from tests.chaos.adapters.names import BASE, CONTENTS, MAX_RANK, NAMES, STORE, TENANTS, Name
from tests.chaos.load import record_answers
from tests.chaos.outcome import Outcome
from tests.chaos.workload import HERO, SHARED, RequestSpec

GREEDY = "greedy"
_GREEDY_TOKENS = 60
_PROMPT = "Once upon a time there was a small dog"


@dataclass(frozen=True)
class AdapterSpec(RequestSpec):
    """A request for an adapter."""

    kind: str = ""
    """Requests of a kind are alike, but for the adapter."""
    adapter: str = ""
    is_permitted: bool = True
    """Whether the tenant may use the adapter."""


Answers = Mapping[tuple[str, str], Outcome]
"""Right answers by kind and digest."""


def pool(seed: int) -> list[AdapterSpec]:
    """A request of every kind for every name, and of one kind by each tenant that may not use it."""
    random_ = random.Random(seed)
    kinds = _kinds(random_)
    specs: list[AdapterSpec] = []
    for each in NAMES.values():
        for at, kind in enumerate(kinds):
            if each.count or kind == GREEDY:
                specs.append(_spec(kind, kinds[kind], each, each.tenants[at % len(each.tenants)], at))
        refused = [tenant for tenant in TENANTS if tenant not in each.tenants]
        specs += [_spec(GREEDY, kinds[GREEDY], each, tenant, at) for at, tenant in enumerate(refused)]
    return specs


def _spec(kind: str, base: RequestSpec, name: Name, tenant: str, way: int) -> AdapterSpec:
    """``way``: in which of three ways the adapter is named."""
    ways = ({"adapter": name.name}, {"model": f"{BASE}:{name.name}"}, {"model": BASE, "adapter": name.name})
    return AdapterSpec(
        f"{kind}-{name.name}-{tenant}",
        base.prompt,
        base.messages,
        base.options | ways[way % len(ways)],
        kind=kind,
        adapter=name.name,
        tenant=tenant,
        is_permitted=tenant in name.tenants,
    )


def _kinds(random_: random.Random) -> dict[str, RequestSpec]:
    seeded = {"temperature": 0.9, "top_p": 0.95, "seed": random_.getrandbits(32)}
    length = {"max_tokens": random_.randint(60, 150), "ignore_eos": True}
    options: dict[str, dict[str, Any]] = {
        GREEDY: {"temperature": 0.0, "max_tokens": _GREEDY_TOKENS, "ignore_eos": True},
        "seeded": {**seeded, **length},
        "choices": {**seeded, **length, "n": 3, "max_tokens": 80},
        "stop": {**seeded, "stop": [" the", "and "], "min_tokens": 30, "max_tokens": 120},
        "logprobs": {**seeded, "logprobs": 5, "prompt_logprobs": 2, "max_tokens": 60},
        "long": {**seeded, "ignore_eos": True, "max_tokens": 300},
        "beams": {"beam_search": {"width": 3}, "n": 2, "max_tokens": 50},
        "schema": {**seeded, "json_schema": HERO, "max_tokens": 120},
    }
    kinds = {kind: RequestSpec(kind, _PROMPT, options=each) for kind, each in options.items()}
    kinds["prefix"] = RequestSpec("prefix", SHARED, options={**seeded, **length})
    return kinds


async def record(operator: AsyncClient, seed: int, concurrency: int) -> tuple[dict[str, str], Answers]:
    """The digests of all contents, and all right answers, while nothing goes wrong.

    Every contents is loaded under a name that is used for nothing else.
    """
    kinds = list(_kinds(random.Random(seed)).values())
    digests: dict[str, str] = {}
    answers: dict[tuple[str, str], Outcome] = {}
    for contents in CONTENTS:
        name = f"reference-{contents}"
        digests[contents] = digest = (await operator.load_adapter(name, f"{STORE}/{contents}")).digest
        specs = [RequestSpec(each.name, each.prompt, options=each.options | {"adapter": name}) for each in kinds]
        found = await record_answers(operator, specs, concurrency, guessing=False)
        answers |= {(kind, digest): answer for kind, answer in found.items()}
        await operator.unload_adapter(name)
    assert len(set(digests.values())) == len(CONTENTS)
    return digests, answers


def check(model: Path, folder: Path, digests: Mapping[str, str], answers: Answers) -> None:
    """Raise ``AssertionError`` unless an engine alone gives the same greedy answers, which all differ."""
    params = SamplingParams(temperature=0.0, max_tokens=_GREEDY_TOKENS, ignore_eos=True)
    named = [LoRARequest(each, 1 + at, folder / STORE / each) for at, each in enumerate(CONTENTS)]
    limits = {"enable_lora": True, "max_lora_rank": MAX_RANK, "max_loras": len(CONTENTS)}
    with LLM(model, kv_cache_memory_bytes="32MiB", max_model_len=256, **limits) as llm:
        outputs = llm.generate([_PROMPT] * (len(CONTENTS) + 1), params, lora_request=[*named, None])
    alone = [list(output.outputs[0].token_ids) for output in outputs]
    for contents, ids in zip(CONTENTS, alone, strict=False):
        assert answers[GREEDY, digests[contents]].choices[0].ids == ids, f"{contents}: the ring answers otherwise"
    assert len(set(map(tuple, alone))) == len(alone), "adapters give equal answers"
