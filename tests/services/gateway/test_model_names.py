"""Names of adapters that clients give, and the models that they are looked up with."""

from __future__ import annotations

import pytest
from ringline.inference.v1 import inference_pb2 as pb
from ringline.results import models_from
from ringline.types.v1 import adapter_pb2

from services.gateway.model_names import find_model
from services.ring.limits import MAX_LISTED_WITH_ADAPTER


def listed(base: str, adapters: int) -> list[pb.Model]:
    """A model that the caller may use with so many adapters only."""
    names = [f"a{number:04}" for number in range(adapters)]
    return [pb.Model(name=f"{base}:{name}", adapters=[adapter_pb2.Adapter(name=name)]) for name in names]


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("many:a0001", True),
        ("many:z", True),
        ("few:a0001", True),
        ("few:z", False),
        ("z", True),
        ("other:z", False),
    ],
)
def test_an_adapter_beyond_those_that_are_listed_has_the_model_of_the_others(name: str, found: bool) -> None:
    models = models_from(pb.ListModelsResponse(models=[*listed("few", 2), *listed("many", MAX_LISTED_WITH_ADAPTER)]))
    model = find_model(name, models)
    assert (None if model is None else model.name) == (name if found else None)
    assert find_model("z", models[:-1]) is None
