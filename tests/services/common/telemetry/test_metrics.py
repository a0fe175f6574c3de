"""Metrics: what Prometheus reads is what was observed."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client import Histogram as ReferenceHistogram
from prometheus_client.parser import text_string_to_metric_families

from services.common.telemetry.metrics import Histogram
from services.detokenizer.metrics import DetokenizerMetrics
from services.engine.metrics import AdapterReading, EngineMetrics, EngineReading
from services.gateway.metrics import GatewayMetrics
from services.processor.metrics import ProcessorMetrics, ProcessorReading


def samples(registry):
    """Every sample by name and labels (without model_name), from the text that Prometheus reads."""
    text = generate_latest(registry).decode()
    return {
        (sample.name, *sorted(value for label, value in sample.labels.items() if label != "model_name")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@given(st.lists(st.tuples(st.sampled_from([0.0, 0.05, 0.1, 0.11, 0.5, 1.0, 2.0]), st.integers(1, 5))))
def test_a_histogram_holds_what_prometheus_own_would(observations):
    registry = CollectorRegistry()
    reference = ReferenceHistogram("h", "Something.", buckets=(0.1, 0.5, 1.0), registry=registry)
    histogram = Histogram("h", "Something.", (0.1, 0.5, 1.0))
    for value, times in observations:
        histogram.observe(value, times)
        for _ in range(times):
            reference.observe(value)
    expected = {key: value for key, value in samples(registry).items() if not key[0].endswith("_created")}
    ours = {(s.name, *s.labels.values()): s.value for s in histogram.family({}).samples}
    assert ours == pytest.approx(expected)


@pytest.mark.parametrize("buckets", [(), (1, 1), (2, 1)])
def test_buckets_that_do_not_ascend_are_refused(buckets):
    with pytest.raises(ValueError, match="ascend"):
        Histogram("h", "Something.", buckets)


def test_a_processor_tells_latencies_tokens_and_ends_under_vllms_names():
    metrics = ProcessorMetrics()
    metrics.model_name = "tiny"
    assert samples(metrics.registry)["ringline_serving",] == 0
    metrics.serving = True
    metrics.update(
        ProcessorReading(
            live_requests=3,
            waiting_requests=1,
            engines=2,
            detokenizers=1,
            suspected=1,
            generations=2,
            failovers={"engine": 4, "replay": 0},
            losses={"engine": 1},
            decisions={"prefix": 5, "overload": 0},
            loads={"engine-0": 2, "engine-1": 7},
            prefixes=40,
        )
    )
    metrics.admitted(0.002)
    metrics.prefilled(11, 0.2)
    metrics.first_token(0.03, tokens=2)
    metrics.tokens(4, seconds=0.02)
    metrics.choice_ended("stop")
    metrics.choice_ended("cancelled")
    metrics.choice_ended("error")
    metrics.request_refused("INVALID_ARGUMENT", "them")
    metrics.request_ended("us", prompt_tokens=11, completion_tokens=6, seconds=1.5, decode_seconds=1.2)
    metrics.request_ended("us", prompt_tokens=1, completion_tokens=0, seconds=0.5, decode_seconds=None)
    read = samples(metrics.registry)
    assert read["vllm:time_to_first_token_seconds_sum",] == pytest.approx(0.03)
    assert read["vllm:time_to_first_token_seconds_bucket", "0.02"] == 0
    assert read["vllm:time_to_first_token_seconds_bucket", "0.04"] == 1
    # Four tokens in 20 ms are four gaps of 5 ms.
    assert read["vllm:inter_token_latency_seconds_count",] == 4
    assert read["vllm:inter_token_latency_seconds_bucket", "0.005"] == 4
    assert read["vllm:generation_tokens_total",] == 6
    assert read["vllm:prompt_tokens_total",] == 11
    assert read["vllm:e2e_request_latency_seconds_sum",] == 2.0
    assert read["vllm:request_prefill_time_seconds_sum",] == 0.2
    assert (read["vllm:request_decode_time_seconds_sum",], read["vllm:request_decode_time_seconds_count",]) == (1.2, 1)
    assert read["ringline_admission_seconds_sum",] == 0.002
    assert read["vllm:request_success_total", "stop"] == 1
    assert read["vllm:request_success_total", "abort"] == 1
    assert read["vllm:request_success_total", "error"] == 2
    assert read["vllm:request_success_total", "deadline"] == 0, "there before the first"
    assert read["ringline_requests_refused_total", "INVALID_ARGUMENT"] == 1
    assert read["ringline_requests_refused_total", "RESOURCE_EXHAUSTED"] == 0
    assert (read["ringline_tenant_requests_total", "us"], read["ringline_tenant_refused_total", "us"]) == (2, 0)
    assert (read["ringline_tenant_requests_total", "them"], read["ringline_tenant_refused_total", "them"]) == (0, 1)
    assert read["ringline_tenant_prompt_tokens_total", "us"] == 12
    assert read["ringline_tenant_generation_tokens_total", "us"] == 6
    assert read["vllm:e2e_request_latency_seconds_count",] == 2
    assert read["ringline_serving",] == 1
    assert (read["ringline_waiting_requests",], read["ringline_suspected_peers",]) == (1, 1)
    assert read["ringline_generations",] == 2
    assert (read["ringline_failovers_total", "engine"], read["ringline_peers_lost_total", "engine"]) == (4, 1)
    assert (read["ringline_live_requests",], read["ringline_engines",], read["ringline_detokenizers",]) == (3, 2, 1)
    assert (read["ringline_routes_total", "prefix"], read["ringline_routes_total", "overload"]) == (5, 0)
    assert (read["ringline_engine_load", "engine-0"], read["ringline_engine_load", "engine-1"]) == (2, 7)
    assert read["ringline_prefixes",] == 40
    assert 'vllm:prompt_tokens_total{model_name="tiny"} 11.0' in generate_latest(metrics.registry).decode()


def test_an_engine_is_read_when_prometheus_asks():
    reading = None
    metrics = EngineMetrics(lambda: reading)
    assert ("vllm:num_requests_running",) not in samples(metrics.registry)
    reading = EngineReading(
        running=5,
        waiting=7,
        kv_usage=0.25,
        kv_blocks=64,
        states=32,
        states_used=8,
        ledgers=12,
        peers=2,
        prefix_queries=100,
        prefix_hits=40,
        preemptions=2,
        steps=9,
        computed_tokens=300,
        generated_tokens=99,
        drafts=10,
        draft_tokens=30,
        accepted_draft_tokens=12,
        accepted_by_position=(7, 4, 1),
    )
    metrics.step(0.012, 5)
    metrics.queued(0.2)
    read = samples(metrics.registry)
    expected = {
        ("vllm:num_requests_running",): 5,
        ("vllm:num_requests_waiting",): 7,
        ("vllm:kv_cache_usage_perc",): 0.25,
        ("vllm:prefix_cache_queries_total",): 100,
        ("vllm:prefix_cache_hits_total",): 40,
        ("vllm:num_preemptions_total",): 2,
        ("vllm:request_queue_time_seconds_count",): 1,
        ("vllm:iteration_tokens_total_sum",): 5,
        ("ringline_step_seconds_sum",): 0.012,
        ("ringline_steps_total",): 9,
        ("ringline_computed_tokens_total",): 300,
        ("ringline_generated_tokens_total",): 99,
        ("ringline_kv_blocks",): 64,
        ("ringline_states",): 32,
        ("ringline_states_used",): 8,
        ("ringline_peers",): 2,
        ("ringline_ledgers",): 12,
        ("vllm:spec_decode_num_drafts_total",): 10,
        ("vllm:spec_decode_num_draft_tokens_total",): 30,
        ("vllm:spec_decode_num_accepted_tokens_total",): 12,
        ("vllm:spec_decode_num_accepted_tokens_per_pos_total", "0"): 7,
        ("vllm:spec_decode_num_accepted_tokens_per_pos_total", "2"): 1,
    }
    assert {key: read[key] for key in expected} == expected


def test_a_detokenizer_tells_what_it_decoded_and_every_service_its_process():
    metrics = DetokenizerMetrics()
    metrics.update(live_requests=2, decoded_tokens=1000, engines=3, subscribers=4, generations=2)
    read = samples(metrics.registry)
    assert (read["ringline_engines",], read["ringline_subscribers",], read["ringline_generations",]) == (3, 4, 2)
    assert (read["ringline_live_requests",], read["ringline_decoded_tokens_total",]) == (2, 1000)
    assert read["process_resident_memory_bytes",] > 2**20


def test_every_series_is_documented():
    """And nothing else is: ``docs/reference/metrics.md`` lists, service by service, what is exported."""
    page = (Path(__file__).parents[4] / "docs" / "reference" / "metrics.md").read_text()
    sections = re.split(r"^## ", page.partition("\n## Dashboard and alerts")[0], flags=re.MULTILINE)[1:]
    adapters = AdapterReading(
        **dict.fromkeys(AdapterReading.__annotations__, 0) | {"running_names": "", "waiting_names": ""}
    )
    others = {"accepted_by_position": (0,), "adapters": adapters}
    reading = EngineReading(**dict.fromkeys(EngineReading.__annotations__, 0) | others)
    services = {
        "Processor": ProcessorMetrics(),
        "Engine": EngineMetrics(lambda: reading),
        "Detokenizer": DetokenizerMetrics(),
        "Gateway": GatewayMetrics(),
    }
    assert [section.partition(":")[0] for section in sections] == list(services)
    for section, metrics in zip(sections, services.values(), strict=True):
        rows = [line.split("|")[1:3] for line in section.splitlines() if line.startswith("| `")]
        documented = {(name, kind.strip()) for names, kind in rows for name in re.findall(r"`([^`]+)`", names)}
        exported = {
            (family.name + ("_total" if family.type == "counter" else ""), family.type) for family in metrics.collect()
        }
        assert documented == exported
