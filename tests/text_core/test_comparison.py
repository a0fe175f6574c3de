"""How near vectors are: the cosine, as torch has it, and the prompts of what is compared."""

import math
import random

import pytest
import torch

from text_core.comparison import DOCUMENT_PROMPTS, QUERY_PROMPTS, cosines, own_prompt, similarities


def vectors(count: int, seed: int) -> list[list[float]]:
    drawn = random.Random(seed)
    return [[drawn.gauss(0, 10 ** drawn.randint(-3, 3)) for _ in range(40)] for _ in range(count)]


@pytest.mark.parametrize("queries", [1, 5])
def test_cosines_are_those_of_torch_and_do_not_depend_on_the_order_of_numbers(queries):
    first, second = vectors(queries, 1), vectors(5, 2)
    expected = torch.nn.functional.cosine_similarity(
        torch.tensor(first, dtype=torch.float64), torch.tensor(second, dtype=torch.float64)
    )
    found = cosines(first, second)
    assert found == pytest.approx(expected.tolist(), abs=1e-14)
    assert cosines([one[::-1] for one in first], [one[::-1] for one in second]) == pytest.approx(found, abs=1e-15)


def test_of_equal_vectors_and_of_nothing():
    [same] = cosines([[0.1, 0.7, 0.3]], [[0.1, 0.7, 0.3]])
    assert same == pytest.approx(1.0, abs=1e-15)
    assert cosines([[0.0, 0.0]], [[1.0, 2.0], [0.0, 0.0]]) == [0.0, 0.0]
    [huge] = cosines([[1e300, 1e300]], [[1e-300, 0.0]])
    assert huge == pytest.approx(math.sqrt(0.5))


@pytest.mark.parametrize("queries", [1, 5])
def test_a_model_may_say_what_compares_its_vectors(queries):
    first, second = vectors(queries, 1), vectors(5, 2)
    one, other = (torch.tensor(each, dtype=torch.float64) for each in (first, second))
    expected = {
        "dot": (one * other).sum(1),
        "euclidean": -torch.nn.functional.pairwise_distance(one, other, p=2, eps=0),
        "manhattan": -torch.nn.functional.pairwise_distance(one, other, p=1, eps=0),
    }
    for kind, values in expected.items():
        assert similarities(kind, first, second) == pytest.approx(values.tolist(), rel=1e-12), kind
    assert similarities("cosine", first, second) == similarities("", first, second) == cosines(first, second)


def test_queries_and_documents_have_the_models_own_prompts():
    prompts = {"query": "Q: ", "passage": "P: ", "other": "O: "}
    assert own_prompt(QUERY_PROMPTS, prompts, "other") == "Q: "
    assert own_prompt(DOCUMENT_PROMPTS, prompts, "other") == "P: "
    assert own_prompt(DOCUMENT_PROMPTS, {"query": "Q: "}, "query") == "Q: "
    assert own_prompt(DOCUMENT_PROMPTS, {"query": "Q: "}, "") == ""
