"""Log probabilities that are kept packed are a sequence, and asking for one after the other unpacks each once."""

import pytest
from ringline import packed_logprobs
from ringline.packed_logprobs import PackedLogprobs
from ringline.types.v1 import output_pb2

SIZES = (3, 0, 1, 4)


@pytest.fixture
def unpacked(monkeypatch):
    """The numbers of tokens that were unpacked at a time."""
    sizes, unpack = [], packed_logprobs.logprobs_from

    def noting(packed):
        sizes.append(len(packed.logprobs))
        return unpack(packed)

    monkeypatch.setattr(packed_logprobs, "logprobs_from", noting)
    return sizes


def packed():
    parts, first = [], 0
    for size in SIZES:
        ids = range(first, first + size)
        part = output_pb2.Logprobs(
            logprobs=[-1.0] * size, ranks=ids, top_count=1, top_ids=ids, top_logprobs=[-2.0] * size
        )
        parts.append(part.SerializeToString())
        first += size
    return PackedLogprobs(parts, first)


def test_each_part_is_unpacked_once_by_who_asks_for_one_entry_after_the_other(unpacked):
    kept = packed()
    assert [kept[at].rank for at in range(len(kept))] == list(range(8))
    assert unpacked == [3, 1, 4]


@pytest.mark.parametrize("part", [slice(None), slice(2, 5), slice(None, None, -3), slice(7, 99), slice(5, 2)])
def test_slices_and_negative_indices(part):
    kept, whole = packed(), tuple(packed())
    assert kept[part] == whole[part]
    assert [kept[-at] for at in range(1, 9)] == [whole[-at] for at in range(1, 9)]
    for outside in (8, -9):
        with pytest.raises(IndexError):
            kept[outside]
