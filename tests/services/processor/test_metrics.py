"""Counters by tenant: some have their own, the rest share one, and nothing is lost."""

from collections import Counter

from services.processor.metrics import IDLE, NOBODY, OTHERS, ProcessorMetrics, tenant_counts


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
    counts = tenant_counts(most=3, clock=Clock())
    for i in range(1000):
        counts.ended(f"tenant-{i}", prompt_tokens=1, generation_tokens=1)
        counts.ended("tenant-1", prompt_tokens=1, generation_tokens=1)
    assert requests(counts) == {"tenant-0": 1, "tenant-1": 1001, "tenant-2": 1, OTHERS: 997}


def test_an_idle_tenant_gives_up_its_series_and_an_active_one_keeps_it():
    clock = Clock()
    counts = tenant_counts(most=2, clock=clock)
    counts.ended("busy", prompt_tokens=1, generation_tokens=1)
    counts.ended("quiet", prompt_tokens=1, generation_tokens=1)
    clock.now = IDLE - 1
    counts.refused("busy")
    counts.ended("new", prompt_tokens=1, generation_tokens=1)
    assert requests(counts) == {"quiet": 1, "busy": 1, OTHERS: 1}
    clock.now = IDLE
    counts.ended("new", prompt_tokens=1, generation_tokens=1)
    assert requests(counts) == {"busy": 1, "new": 1, OTHERS: 1}


def test_requests_without_a_tenant_have_a_label():
    counts = tenant_counts(clock=Clock())
    counts.ended("", prompt_tokens=5, generation_tokens=7)
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
    counts = tenant_counts(most=5, clock=Clock())
    names = ["", NOBODY, OTHERS, "((others)", "one more"]
    for name in [*names, "one too many"]:
        counts.ended(name, prompt_tokens=1, generation_tokens=1)
    for family in counts.families("tiny"):
        labels = [sample.labels["tenant"] for sample in family.samples]
        assert len(labels) == len(set(labels)) == len(names) + 1
        assert labels[-1] == OTHERS


def test_adapters_are_counted_for_each_tenant_and_a_flood_of_names_makes_few_series():
    metrics = ProcessorMetrics()
    for number in range(1000):
        metrics.request_ended("a", 2, 3, 1.0, None, adapter=f"adapter-{number % 300}")
    metrics.request_ended("a", 2, 3, 1.0, None)
    found = {
        (sample.labels["tenant"], sample.labels["adapter"]): sample.value
        for family in metrics.collect()
        if family.name == "ringline_adapter_generation_tokens"
        for sample in family.samples
    }
    assert len(found) == 101
    assert found["a", "adapter-7"] == 12
    assert sum(found.values()) == 3000
