"""Counters by tenant: some have their own, the rest share one, and nothing is lost."""

from collections import Counter

from services.processor.metrics import IDLE, NOBODY, OTHERS, TenantCounts


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def requests(counts):
    """Ended requests by label."""
    (family,) = [family for family in counts.families("tiny") if family.name == "ringline_tenant_requests"]
    return {sample.labels["tenant"]: sample.value for sample in family.samples}


def test_a_flood_of_tenants_makes_no_more_series():
    counts = TenantCounts(most=3, clock=Clock())
    for i in range(1000):
        counts.ended(f"tenant-{i}", 1, 1)
        counts.ended("tenant-1", 1, 1)
    assert requests(counts) == {"tenant-0": 1, "tenant-1": 1001, "tenant-2": 1, OTHERS: 997}


def test_an_idle_tenant_gives_up_its_series_and_an_active_one_keeps_it():
    clock = Clock()
    counts = TenantCounts(most=2, clock=clock)
    counts.ended("busy", 1, 1)
    counts.ended("quiet", 1, 1)
    clock.now = IDLE - 1
    counts.refused("busy")
    counts.ended("new", 1, 1)
    assert requests(counts) == {"quiet": 1, "busy": 1, OTHERS: 1}
    clock.now = IDLE
    counts.ended("new", 1, 1)
    assert requests(counts) == {"busy": 1, "new": 1, OTHERS: 1}


def test_requests_without_a_tenant_have_a_label():
    counts = TenantCounts(clock=Clock())
    counts.ended("", 5, 7)
    counts.refused("")
    found = Counter()
    for family in counts.families("tiny"):
        found[family.name] = sum(sample.value for sample in family.samples if sample.labels["tenant"] == NOBODY)
    assert found == {
        "ringline_tenant_requests": 1,
        "ringline_tenant_refused": 1,
        "ringline_tenant_prompt_tokens": 5,
        "ringline_tenant_generation_tokens": 7,
    }


def test_a_tenant_whose_name_is_a_label_has_a_series_of_its_own():
    counts = TenantCounts(most=5, clock=Clock())
    names = ["", NOBODY, OTHERS, "((others)", "one more"]
    for name in [*names, "one too many"]:
        counts.ended(name, 1, 1)
    for family in counts.families("tiny"):
        labels = [sample.labels["tenant"] for sample in family.samples]
        assert len(labels) == len(set(labels)) == len(names) + 1
        assert labels[-1] == OTHERS
