"""Answers of ``ListModels``: with thousands of adapters, making one takes tens of milliseconds of the event loop."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import islice
from operator import is_

from ringline.inference.v1 import inference_pb2

from services.common.rpc.shared_messages import adapter_to_proto
from services.processor.admission.model_choice import ModelChoices
from services.processor.admission.request_resolution import resolve_sampling
from services.processor.admission.tenant_policy import TenantPolicy
from services.processor.request import SEPARATOR
from services.processor.served_models import ServedModel, ServedModels
from services.ring.adapters import Adapter
from services.ring.limits import MAX_LISTED_WITH_ADAPTER

_MOST_KEPT = 16
"""Answers, of as many policies; the least recently asked for go first."""


class ListedModels:
    """Makes an answer once for all tenants of a policy, until models or their adapters change."""

    def __init__(self, models: ServedModels, choices: ModelChoices) -> None:
        self._models = models
        self._choices = choices
        self._served: Sequence[ServedModel] = ()
        self._revision = -1
        self._answers: OrderedDict[TenantPolicy, bytes] = OrderedDict()
        """Of these, serialized."""

    def answer(self, policy: TenantPolicy) -> bytes:
        """A ``ListModelsResponse``."""
        served, revision = self._models.served(), self._choices.adapters_revision
        is_as_before = len(served) == len(self._served) and all(map(is_, served, self._served))
        if revision != self._revision or not is_as_before:
            self._served, self._revision = served, revision
            self._answers.clear()
        if (answer := self._answers.get(policy)) is None:
            adapters_of = partial(self._choices.adapters_of, policy=policy)
            answer = list_models(served, adapters_of, policy.permits).SerializeToString()
            self._answers[policy] = answer
            if len(self._answers) > _MOST_KEPT:
                self._answers.popitem(last=False)
        self._answers.move_to_end(policy)
        return answer


def list_models(
    served: Sequence[ServedModel],
    adapters_of: Callable[[ServedModel], Iterable[Adapter]] = lambda model: (),
    permits: Callable[[str], bool] = lambda name: True,
) -> inference_pb2.ListModelsResponse:
    """The newest model of each name, those that generate first; the first one under its further names, too.

    ``adapters_of``: the adapters of a model that the caller may use; ``permits``: whether it may use a model by itself.
    A model that it may use with an adapter only is listed under the names of both.
    """
    by_name: dict[str, ServedModel] = {}
    for each in sorted(served, key=lambda each: each.pools):
        by_name.setdefault(each.limits.name, each)
    permitted = {name: each for name, each in by_name.items() if permits(name)}
    listed = inference_pb2.ListModelsResponse()
    for name, each in permitted.items():
        described = _described(name, each)
        described.adapters.extend(filter(None, map(adapter_to_proto, adapters_of(each))))
        listed.models.append(described)
    for each in list(permitted.values())[:1]:
        others = (alias for alias in dict.fromkeys(each.limits.aliases) if alias not in permitted)
        listed.models.extend(_described(alias, each) for alias in others)
    for name, each in by_name.items():
        for adapter in () if name in permitted else islice(adapters_of(each), MAX_LISTED_WITH_ADAPTER):
            described = _described(f"{name}{SEPARATOR}{adapter.name}", each)
            described.adapters.extend(filter(None, [adapter_to_proto(adapter)]))
            listed.models.append(described)
    return listed


def _described(name: str, served_model: ServedModel) -> inference_pb2.Model:
    model = served_model.model
    described = inference_pb2.Model(
        name=name,
        architecture=model.architecture,
        vocab_size=model.vocab_size,
        max_model_len=model.max_model_len,
        eos_token_ids=model.eos_token_ids,
        has_chat_template=bool(served_model.chat.names),
        tokenizer_digest=model.tokenizer_digest,
        model_digest=model.model_digest,
        capabilities=sorted(served_model.capabilities),
        num_parameters=model.num_parameters,
        pooling=model.pooling if served_model.pools else None,
    )
    if not served_model.pools:
        described.default_sampling.CopyFrom(resolve_sampling(inference_pb2.SamplingParams(), model.default_sampling))
    return described
