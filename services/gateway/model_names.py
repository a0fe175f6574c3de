"""Names of models and of their adapters, which clients use like models."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ringline import Admitted, Model

from services.ring.limits import MAX_LISTED_WITH_ADAPTER

_SEPARATOR = ":"
"""Between the name of a model and that of an adapter, which has none."""


@dataclass(frozen=True, slots=True)
class Named:
    """A name that ``model`` of a request can have."""

    id: str
    model: Model
    """The model of that name; for an adapter, its base."""
    parent: str | None = None
    """Name of an adapter's base; None: it is a model."""
    root: str = ""
    """The model's name; of an adapter both names, by which it can be asked for, too."""


def answered_model(asked: str | None, model: str, adapter: str = "") -> str:
    """The name that an answer has: the model's own, but with an adapter what was ``asked`` for."""
    if not adapter:
        return model
    return asked if asked and asked.rpartition(_SEPARATOR)[2] == adapter else adapter


def names_of_lookup(admitted: Admitted) -> tuple[str, ...]:
    """By which the model of an admitted request can be looked up; its caller may know the adapter's alone."""
    if admitted.adapter is None:
        return (admitted.model,)
    return admitted.model, f"{admitted.model}{_SEPARATOR}{admitted.adapter.name}"


def named(models: Sequence[Model]) -> Iterator[Named]:
    """Every model, each followed by its adapters.

    An adapter's id is its name; with that of its base before it, if a model or another model's adapter is called so.
    """
    taken = Counter(model.name for model in models) + Counter(one.name for model in models for one in model.adapters)
    for model in models:
        base = _base_of(model)
        if base is None:
            yield Named(model.name, model, root=model.name)
        for adapter in model.adapters:
            both = f"{base or model.name}{_SEPARATOR}{adapter.name}"
            yield Named(adapter.name if taken[adapter.name] == 1 else both, model, base or model.name, both)


def find_model(name: str, models: Sequence[Model]) -> Model | None:
    """The model of a name, which may be an adapter's: then with that name."""
    for model in models:
        if name == model.name:
            return model
    found = next((each.model for each in named(models) if name in (each.id, each.root)), None)
    found = found or _with_more_adapters(name, models)
    return None if found is None else replace(found, name=name)


def _with_more_adapters(name: str, models: Sequence[Model]) -> Model | None:
    """A model that may have an adapter of a ``name`` that is not listed, as its caller may use it with many."""
    bases = Counter(filter(None, map(_base_of, models)))
    own, _, _ = name.rpartition(_SEPARATOR)
    more = {base for base, listed in bases.items() if listed >= MAX_LISTED_WITH_ADAPTER and own in ("", base)}
    return next((model for model in models if _base_of(model) in more), None)


def _base_of(model: Model) -> str | None:
    """The base, if this is a model that its caller may use with its one adapter only; None for others."""
    if len(model.adapters) != 1:
        return None
    base, _, adapter = model.name.rpartition(_SEPARATOR)
    return base if base and adapter == model.adapters[0].name else None
