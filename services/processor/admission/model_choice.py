"""Which model a request means, and which of its adapters: by the field ``adapter``, or by a ``model`` that names both.

``model`` is the name of a model, or else ``base:adapter``, or else the name of an adapter alone. New requests get the
adapter that the name stands for now; one that is resumed the digest that it began with. An adapter that a tenant may
not use is answered like one that is not there.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice

from services.processor.admission.tenant_policy import TenantPolicies, TenantPolicy, forbidden_model
from services.processor.request import SEPARATOR, Asked
from services.processor.served_models import LookupModels, ServedModel, ServedModels
from services.processor.suitability import Suits, generates
from services.ring.adapters import Adapter, AdapterBook
from services.ring.errors import Code, Reason, Refused, invalid_field
from services.ring.identity import ADAPTER_DIGEST, ADAPTERS

_MOST_SHOWN, _MOST_SEARCHED = 8, 1000
"""Names that an error gives, and those that are looked through for them."""


_ANYTHING = Asked()


@dataclass(frozen=True, slots=True)
class Chosen:
    """What a request gets."""

    model: ServedModel
    adapter: Adapter | None = None
    is_resume: bool = False
    """Whether the request began with that adapter elsewhere."""


class ModelChoices:
    """Chooses for all requests and look-ups."""

    def __init__(self, models: ServedModels, adapters: AdapterBook, policies: TenantPolicies) -> None:
        self._models = models
        self._adapters = adapters
        self._policies = policies

    def choose(self, asked: Asked, tenant: str, suits: Suits = generates) -> Chosen | Refused | None:
        """What a request gets, or why it is refused; None while the engines that it needs take no work."""
        if asked.adapter_digest and not ADAPTER_DIGEST.fullmatch(asked.adapter_digest):
            return invalid_field("resume.adapter_digest", "expected the 64 hexadecimal digits that Admitted gave")
        if not self._models.held:
            return self._models.refuse_without_model()
        policy = self._policies.of(tenant)
        base, adapter = self._split(asked, policy)
        if isinstance(base, Refused):
            return base
        if not adapter:
            return self._without_adapter(asked, policy, suits)
        if base and not self._is_model(base):
            return self._models.choose(base)[1]
        if asked.adapter_digest:
            return self._for_resume(asked, base, adapter, policy)
        return self._for_new(asked, base, adapter, policy, suits)

    def for_lookup(self, name: str, models: LookupModels, tenant: str) -> ServedModel:
        """The model of a look-up, which an adapter's name stands for, too. Raises ``Refused``. May run in a thread."""
        if name and not any(each.limits.answers_to(name) for each in models.served):
            policy, (base, _, adapter) = self._policies.of(tenant), name.rpartition(SEPARATOR)
            for each in models.served:
                if (not base or each.limits.answers_to(base)) and self._current(each, adapter, policy) is not None:
                    return each
        model, refused = models.choose(name)
        self._policies.check_model(tenant, model.limits.name)
        if refused is not None:
            raise refused
        return model

    def is_gone(self, chosen: Chosen) -> bool:
        """Whether no engine of the model begins any more with an adapter that was chosen for a new request."""
        if chosen.adapter is None or chosen.is_resume:
            return False
        return not self._adapters.anywhere(chosen.adapter, chosen.model.generation, begins=True)

    @property
    def adapters_revision(self) -> int:
        """Grows when what ``adapters_of`` gives may have changed."""
        return self._adapters.revision

    def adapters_of(self, model: ServedModel, policy: TenantPolicy) -> Iterator[Adapter]:
        """The model's adapters that a tenant's requests may name now, by name."""
        for name in sorted(self._adapters.names(model.generation)):
            if (adapter := self._current(model, name, policy)) is not None:
                yield adapter

    def _split(self, asked: Asked, policy: TenantPolicy) -> tuple[str | Refused, str]:
        """The names of the model (empty: any) and of the adapter; empty if ``model`` is, or seems, that of a model."""
        if not asked.model or self._is_model(asked.model):
            return asked.model, asked.adapter
        base, _, adapter = asked.model.rpartition(SEPARATOR)
        names_adapter = self._is_model(base) if base else self._is_adapter(adapter, policy)
        if not asked.adapter:
            return base, adapter if names_adapter else ""
        if adapter == asked.adapter:
            return base, adapter
        if not names_adapter:
            return asked.model, asked.adapter
        problem = f"{asked.adapter[:200]!r}, and model names another, {adapter[:200]!r}: expected one of the two"
        return invalid_field("adapter", problem), asked.adapter

    def _without_adapter(self, asked: Asked, policy: TenantPolicy, suits: Suits) -> Chosen | Refused | None:
        model, refused = self._models.choose(asked.model, asked.model_digest, suits=suits)
        if refused is not None:
            if refused.status.reason is not Reason.MODEL_NOT_FOUND:
                return refused
            return None if asked.adapter_digest or self._may_come("") else self._or_adapters(refused, policy)
        if model is None:
            return None
        if asked.adapter_digest:
            return invalid_field("resume.adapter_digest", "set, but the request names no adapter: expected neither")
        return Chosen(model) if policy.permits(model.limits.name) else forbidden_model()

    def _for_new(
        self, asked: Asked, base: str, name: str, policy: TenantPolicy, suits: Suits
    ) -> Chosen | Refused | None:
        """Also for a request that is resumed before anything was computed."""
        known = [each for each in self._named(base, asked) if self._current(each, name, policy) is not None]
        found = self._taking(known)
        best = max((suits(each.model) for each in found), default=0)
        found = [each for each in found if suits(each.model) == best]
        if len(names := list(dict.fromkeys(each.limits.name for each in found))) > 1:
            of = " or ".join(f"{each}{SEPARATOR}{name}" for each in names)
            return invalid_field("model", f"{name!r} is an adapter of several models: expected {of}")
        if found:
            return Chosen(found[0], self._current(found[0], name, policy))
        if known or asked.model_digest or self._may_come(base) or self._is_in_doubt(base, name, policy):
            return None
        return self._unknown(base, name, policy)

    def _unknown(self, base: str, name: str, policy: TenantPolicy) -> Refused:
        if missing := self._models.num_missing_engines:
            which = f"{missing} {'is' if missing == 1 else 'are'} not attached"
            message = f"model: the engines that are attached have no adapter {name[:200]!r}, and {which}: retry later"
            return Refused(Code.UNAVAILABLE, message, retry_after_ms=1000, field="model")
        models = self._taking(self._named(base))
        if any(ADAPTERS in each.model.capabilities for each in models):
            expected = self._expected(models, policy)
        else:
            expected = "its engines serve none (--enable-lora)"
        has = f"{base!r} has" if base else "there is"
        message = f"model: {has} no adapter {name[:200]!r}: {expected}"
        return Refused(Code.NOT_FOUND, message, reason=Reason.ADAPTER_NOT_FOUND, field="model")

    def _or_adapters(self, refused: Refused, policy: TenantPolicy) -> Refused:
        """The error of an unknown name, which may have been meant for an adapter's."""
        if not (names := self._shown(self._taking(self._named("")), policy)):
            return refused
        status = refused.status
        message = f"{status.message}, or an adapter such as {names}"
        return Refused(status.code, message, reason=status.reason, field=status.field)

    def _expected(self, models: Iterable[ServedModel], policy: TenantPolicy) -> str:
        if names := self._shown(models, policy):
            return f"expected one such as {names}"
        return "there is none that this tenant may use"

    def _shown(self, models: Iterable[ServedModel], policy: TenantPolicy) -> str:
        """Some of the names that the tenant may use, never others."""
        names = (
            name
            for each in models
            for name in islice(self._adapters.names(each.generation), _MOST_SEARCHED)
            if self._current(each, name, policy) is not None
        )
        return ", ".join(map(repr, sorted(set(islice(names, _MOST_SHOWN)))))

    def _for_resume(self, asked: Asked, base: str, name: str, policy: TenantPolicy) -> Chosen | Refused | None:
        """The model and the adapter that the request began with. It is waited for, as its engines may be away.

        Another name of the same adapter will do, if the tenant may use it.
        """
        try:
            adapter = Adapter(name, asked.adapter_digest)
        except ValueError as error:
            return invalid_field("adapter", str(error))
        named = self._named(base, asked)
        permitted = [each for each in named if policy.permits_adapter(each.limits.name, name)]
        if named and not permitted:
            return self._unknown(base, name, policy)
        known = [each for each in permitted if self._known_name(each, adapter, policy) is not None]
        for each in (*self._taking(known), *known):
            if (found := self._known_name(each, adapter, policy)) is not None:
                return Chosen(each, replace(adapter, name=found), is_resume=True)
        return None

    def _known_name(self, model: ServedModel, adapter: Adapter, policy: TenantPolicy) -> str | None:
        """A name under which a model's engines have an adapter, if the tenant may use one: its own, if it can be."""
        names = self._adapters.names_of(adapter.digest, model.generation)
        permitted = (name for name in names if policy.permits_adapter(model.limits.name, name))
        return min(permitted, key=lambda name: (name != adapter.name, name), default=None)

    def _current(self, model: ServedModel, name: str, policy: TenantPolicy) -> Adapter | None:
        """The adapter that a name stands for, if the tenant may use it."""
        if not policy.permits_adapter(model.limits.name, name):
            return None
        return self._adapters.current(model.generation, name)

    def _is_model(self, name: str) -> bool:
        return any(each.limits.answers_to(name) for each in self._models.held.values())

    def _is_adapter(self, name: str, policy: TenantPolicy) -> bool:
        """Whether a name is that of an adapter, of any model, that the tenant may use."""
        return any(
            policy.permits_adapter(each.limits.name, name) and self._adapters.under(name, (each.generation,))
            for each in self._models.held.values()
        )

    def _named(self, base: str, asked: Asked = _ANYTHING) -> list[ServedModel]:
        """The models that a name stands for (empty: any), on which a request began, if it did; the newest first."""
        return [
            each
            for each in self._models.held.values()
            if (not base or each.limits.answers_to(base)) and asked.model_digest in ("", each.model.model_digest)
        ]

    def _taking(self, models: Iterable[ServedModel]) -> list[ServedModel]:
        """Those whose engines take work, the best for new requests first."""
        order = {generation: place for place, generation in enumerate(self._models.preferred())}
        there = [each for each in models if each.generation in order]
        return sorted(there, key=lambda each: order[each.generation])

    def _is_in_doubt(self, base: str, name: str, policy: TenantPolicy) -> bool:
        """Whether an adapter that the tenant may use is being replaced: what its name stands for is told soon."""
        now = time.monotonic()
        return any(
            policy.permits_adapter(each.limits.name, name) and self._adapters.is_in_doubt(name, each.generation, now)
            for each in self._named(base)
        )

    def _may_come(self, base: str) -> bool:
        """Whether an adapter may be there that is not known yet: no engine takes work, or one has not told all."""
        models = self._named(base)
        return not self._taking(models) or not self._adapters.is_complete(each.generation for each in models)
