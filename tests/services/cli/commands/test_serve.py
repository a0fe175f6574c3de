"""``ringline serve`` from its start to its end, with real services and the bundled model."""

import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
import ringline as ringline_client

from services.cli.supervise.runtime_directory import running_stacks
from tests.processes import alive
from tests.programs import ringline, run
from tests.ring import MODEL, ROOT
from tests.services.secured_ring import Certificates
from tests.waiting import until

pytestmark = pytest.mark.long


@pytest.fixture
def environment(private_runtime_directory):
    return {**os.environ, "OMP_NUM_THREADS": "1"}


class Stack:
    """A running ``ringline serve``."""

    def __init__(self, env, directory, *flags):
        self.env, self.log = env, directory / "serve.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "services.cli", "serve", *flags], stdout=log, stderr=log, cwd=ROOT, env=env
            )

    def until(self, condition):
        end = time.monotonic() + 200
        while not condition():
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < end, self.log.read_text()
            time.sleep(0.05)

    def ready(self):
        self.until(lambda: self.events("ready"))

    def events(self, name):
        records = [json.loads(line) for line in self.lines() if line.startswith("{")]
        return [record for record in records if record["event"] == name]

    def lines(self):
        """Of the log, without one that is just being written."""
        return self.log.read_text().rpartition("\n")[0].splitlines()

    def serving(self):
        """What ``ringline status`` shows when it finds everything well; it gives services two seconds to answer."""
        shown = []
        self.until(lambda: shown.append(self.status()) or shown[-1][0] == 0)
        return shown[-1][1]

    def status(self):
        done = ringline("status", "--all", "--json", env=self.env)
        (stack,) = json.loads(done.stdout)["stacks"]
        return done.returncode, {service["service"]: service for service in stack["services"]}


def test_a_stack_serves_survives_the_death_of_a_service_and_ends_in_order(environment, tmp_path):
    flags = (str(MODEL), "--port", "0", "--http-port", "0", "--kv-cache-memory-bytes", "1MiB", "--log-level", "debug")
    flags += ("--max-model-len", "36", "--block-size", "5", "--max-num-batched-tokens", "1")  # as small as may be
    flags += ("--seed", "0")  # of vLLM and llama-server
    # What is meant for the stack must reach its engine from a variable too, and no service by accident.
    variables = {"RINGLINE_MAX_NUM_SEQS": "3", "RINGLINE_LOG_FORMAT": "json", "RINGLINE_BLOCKSIZE": "8"}
    stack = Stack({**environment, **variables}, tmp_path, *flags)
    try:
        stack.ready()
        records = [json.loads(line) for line in stack.lines()]
        events = [record["event"] for record in records if record["service"] != "gateway"]
        assert (events.count("serving"), events.count("ready")) == (3, 1)
        assert not [event for event in events if "--http-port" in event]  # which is given
        # Both before torch is loaded, so that a start that takes seconds is seen to happen.
        assert events.index("starting") < events.index("stage started") < events.index("stage")
        (unknown,) = stack.events("unknown variable")  # once, not by each service again
        assert (unknown["service"], unknown["nearest"]) == ("serve", "RINGLINE_BLOCK_SIZE")
        (ignored,) = stack.events("flag has no effect")
        assert (ignored["service"], ignored["flag"]) == ("serve", "--seed")
        assert "serving" not in events[events.index("ready") :]
        stages = [stage["name"] for stage in stack.events("stage")]
        assert stages[:6] == [
            "load libraries",
            "configuration",
            "device",
            "load weights",
            "allocate KV cache",
            "warm up",
        ]
        [of_engine] = [line["given"] for line in stack.events("options") if line["service"] == "engine"]
        assert "--block-size=5" in of_engine
        assert "--log-format=json" in of_engine
        services = stack.serving()
        assert {service["health"] for service in services.values()} == {"SERVING"}
        for service, state in services.items():
            assert Path(f"/proc/{state['pid']}/cmdline").read_text().startswith(f"ringline {service} ")
        assert services["processor"]["models"][0]["max_model_len"] == 36
        assert services["engine"]["load"]["blocks_used"] == 0
        (ready,) = stack.events("ready")
        assert (ready["address"], ready["http_url"]) == tuple(
            services[each]["address"] for each in ("processor", "gateway")
        )
        with urllib.request.urlopen(f"{ready['http_url']}/v1/models", timeout=60) as answer:
            assert json.load(answer)["data"][0]["max_model_len"] == 36
        address = services["processor"]["address"]
        stack.until(lambda: ringline("health", address, env=environment).stdout == "SERVING\n")
        for service in services.values():
            with urllib.request.urlopen(service["metrics"], timeout=60) as answer:
                assert b"process_resident_memory_bytes" in answer.read()

        check_log_of_a_request(stack, services["processor"]["address"])

        killed = ("detokenizer", "gateway")
        for service in killed:
            os.kill(services[service]["pid"], signal.SIGKILL)
        for service in killed:
            stack.until(lambda name=service: [each["service"] for each in stack.events("serving")].count(name) == 2)
        assert {(death["child"], death["code"]) for death in stack.events("died")} == {
            (service, -signal.SIGKILL) for service in killed
        }
        before, services = services, stack.serving()
        assert {name for name in services if services[name]["pid"] != before[name]["pid"]} == set(killed)

        stack.process.send_signal(signal.SIGTERM)
        assert stack.process.wait(90) == 0
        [stopping] = stack.events("stopping")
        assert stopping["next"] == "another signal stops at once"
        assert [r["service"] for r in stack.events("draining")] == ["gateway", "processor", "detokenizer", "engine"]
        assert not any(alive(service["pid"]) for service in services.values())
        done = ringline("status", "--all", env=environment)
        assert (done.returncode, done.stdout[:24]) == (1, "nothing is running here;")
    finally:
        stack.process.kill()


def check_log_of_a_request(stack, address):
    """Each service tells of its end under one id; the processor knows what the client called it."""
    arguments = ("--max-tokens", "4", "--ignore-eos", "--n", "2", "--address", address)
    assert ringline("generate", "the cat", *arguments, env=stack.env).returncode == 0
    stack.until(lambda: len(stack.events("request finished")) == 3)
    records = {record["service"]: record for record in stack.events("request finished")}
    assert records.keys() == {"engine", "detokenizer", "processor"}
    assert len({record["request_id"] for record in records.values()}) == 1
    for record in records.values():
        assert record["finish_reasons"] == {"0": "LENGTH", "1": "LENGTH"}
        assert (record["level"], record["completion_tokens"]) == ("debug", 8)
    assert records["processor"]["prompt_tokens"] == records["engine"]["prompt_tokens"] > 0
    assert records["processor"]["client_request_id"] not in (None, records["processor"]["request_id"])


async def test_nothing_outlives_a_stack_that_is_killed_outright(environment, tmp_path):
    stack = Stack(environment, tmp_path, str(MODEL), "--port", "0")
    try:
        stack.until(lambda: any(len(state.services) == 4 for state in running_stacks()))
        (state,) = running_stacks()
        pids = [service.pid for service in state.services.values()]
    finally:
        stack.process.kill()
    stack.process.wait()
    await until(lambda: not any(alive(pid) for pid in pids))
    assert running_stacks() == []


def test_a_stack_whose_engine_cannot_start_ends_with_its_code_and_one_readable_error(environment):
    """Its context does not fit, and the error says what to change."""
    shown = {**environment, "OMP_DISPLAY_ENV": "TRUE"}
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    done = ringline("serve", str(MODEL), "--port", str(port), "--kv-cache-memory-bytes", "32KiB", env=shown)
    assert done.returncode == 3
    assert re.search(
        rf"^gRPC listens on port {port} \(--port\), HTTP on port \d+ \(--http-port\)$", done.stdout, re.MULTILINE
    )
    assert "OMP_WAIT_POLICY = 'PASSIVE'" in done.stderr  # or idle threads of the engine would starve the other services
    errors = [line for line in done.stderr.splitlines() if "error" in line.lower()]
    assert len(errors) == 1
    assert errors[0].startswith("error: engine: ")
    assert "--max-model-len" in errors[0]
    assert "Traceback" not in done.stderr + done.stdout


@pytest.mark.parametrize("command", ["serve", "engine", "demo"])
def test_a_model_that_is_not_there_is_said_in_one_line_before_anything_is_started(command, environment, tmp_path):
    model = str(tmp_path / "missing")
    done = ringline(command, *(("--model", model) if command == "demo" else (model,)), env=environment)
    assert (done.returncode, done.stdout) == (3, "")
    said = done.stderr if command != "engine" else f"error: {json.loads(done.stderr)['error']}\n"  # a service's is JSON
    assert said == f"error: {model} does not exist: check the path; in a container, only what is mounted can be seen\n"


@pytest.mark.parametrize("command", ["serve", "engine"])
def test_a_hub_out_of_reach_is_said_before_anything_is_started(command, environment, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}"  # closed when the block ends
    reachable = {"HF_HUB_OFFLINE": "0", "HF_ENDPOINT": address, "HF_HOME": str(tmp_path)}
    done = ringline(command, "some/model", env={**environment, **reachable})
    assert done.returncode == 3
    assert f"the hub cannot be reached at {address}: check the network" in done.stderr
    assert "load libraries" not in done.stdout + done.stderr


@pytest.mark.parametrize("flag", ["--port", "--http-port"])
def test_a_taken_port_is_said_before_anything_is_started(flag, environment):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = ringline("serve", str(MODEL), "--port", "0", flag, str(port), env=environment)
    assert done.returncode == 3
    assert done.stderr == f"error: port {port} is in use: choose another with {flag}\n"


def test_the_gateway_cannot_have_the_processors_port(environment):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    done = ringline("serve", str(MODEL), "--port", str(port), "--http-port", str(port), env=environment)
    assert done.returncode == 3
    assert done.stderr == f"error: port {port} is the processor's: choose another with --http-port\n"


def test_the_demo_streams_an_answer_and_shows_what_ran_where(environment):
    done = ringline("demo", "--prompt", "hello", env=environment)
    assert done.returncode == 0, done.stderr + done.stdout
    assert done.stderr == ""
    report = done.stdout.splitlines()[-7:]
    for line, service in zip(report[::2], ("processor", "engine", "detokenizer", "first token"), strict=True):
        assert line.split()[0] == service.split()[0]
    assert "tokens/s" in report[-1]


def test_the_demo_kills_a_service_and_finds_the_answers_unchanged(environment):
    code = "from services.cli.commands import demo; from services.cli.main import main; demo._SECONDS = 1.0; main()"
    done = run(sys.executable, "-c", code, "demo", "--kill", "detokenizer", "--prompt", "the", env=environment)
    assert done.returncode == 0, done.stderr + done.stdout
    assert re.search(r"kill -9 \d+: the detokenizer is dead", done.stdout)
    answers, tokens = re.search(r"undisturbed: ([\d,]+) answers, ([\d,]+) tokens in", done.stdout).groups()
    compared = f"{answers} answers of {tokens} tokens, each compared with the undisturbed one: the same\n"
    assert done.stdout.endswith(compared)


@pytest.mark.wide
def test_a_demo_that_is_stopped_before_its_answer_did_not_succeed(environment):
    command = [sys.executable, "-m", "services.cli", "demo"]
    codes = []
    while 130 not in codes and len(codes) < 5:  # it may come to its end before it hears of the signal
        with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as process:
            assert any(line.startswith("  engine:") for line in process.stdout)
            process.send_signal(signal.SIGINT)
            codes.append(process.wait(60))
    assert codes[-1] == 130
    assert not any(codes[:-1])


@pytest.mark.wide
def test_engines_of_one_machine_take_over_from_each_other(environment, tmp_path):
    flags = ("--port", "0", "--no-http", "--data-parallel-size", "2", "--num-detokenizers", "2")
    stack = Stack({**environment, "RINGLINE_LOG_FORMAT": "json"}, tmp_path, str(MODEL), *flags)
    try:
        stack.ready()
        services = stack.serving()
        names = {"engine-0", "engine-1", "detokenizer-0", "detokenizer-1", "processor"}
        assert services.keys() == names
        memory = [stage["bytes"] for stage in stack.events("stage") if stage["name"] == "allocate KV cache"]
        assert len(memory) == 2
        assert min(memory) > 0.8 * max(memory)
        with ringline_client.Client(services["processor"]["address"]) as client:
            options = {"max_tokens": 600, "temperature": 0, "ignore_eos": True}
            expected = client.generate("Once upon a time", **options).choices[0].text
            deltas = client.stream("Once upon a time", **options)
            texts = [next(deltas).text for _ in range(5)]
            loads = {name: each["load"]["running_choices"] for name, each in stack.serving().items() if each["load"]}
            (busy,) = (name for name, running in loads.items() if running)
            os.kill(services[busy]["pid"], signal.SIGKILL)
            assert "".join([*texts, *(delta.text for delta in deltas)]) == expected
        assert stack.process.poll() is None
        before, services = services, stack.serving()
        assert {name for name in names if services[name]["pid"] != before[name]["pid"]} == {busy}
        stack.process.send_signal(signal.SIGTERM)
        assert stack.process.wait(90) == 0
    finally:
        stack.process.kill()


@pytest.mark.wide
def test_doors_of_one_machine_take_over_from_each_other(environment, tmp_path):
    """Clients know one address of each kind, and all of them show certificates."""
    certificates = Certificates(tmp_path)
    certificates.issue("processor")
    files = {"ca": "ca", "cert": "processor", "key": "processor-key"}
    flags = [f"--tls-{flag}-file={certificates.path(name)}" for flag, name in files.items()]
    flags += ["--tls-client-auth", "require", "--port", "0", "--http-port", "0", "--api-server-count", "2"]
    variables = {f"RINGLINE_TLS_{flag.upper()}_FILE": str(certificates.path(name)) for flag, name in files.items()}
    stack = Stack({**environment, **variables, "RINGLINE_LOG_FORMAT": "json"}, tmp_path, str(MODEL), *flags)
    try:
        stack.ready()
        before = stack.serving()
        doors = {"processor-0", "processor-1", "gateway-0", "gateway-1"}
        assert before.keys() == doors | {"engine", "detokenizer"}
        (ready,) = stack.events("ready")
        shown = ssl.create_default_context(cafile=certificates.path("ca"))
        shown.load_cert_chain(certificates.path("processor"), certificates.path("processor-key"))

        def models():
            with urllib.request.urlopen(f"{ready['http_url']}/v1/models", timeout=60, context=shown) as answer:
                return json.load(answer)["data"][0]["id"]

        client = ringline_client.Client(
            ready["address"], **{name: certificates.path(each) for name, each in files.items()}
        )
        with client:
            options = {"max_tokens": 600, "temperature": 0, "ignore_eos": True}
            expected = client.generate("Once upon a time", **options).choices[0].text
            deltas = client.stream("Once upon a time", **options)
            texts = [next(deltas).text for _ in range(5)]
            (busy,) = (name for name, each in stack.serving().items() if (each["page"] or {}).get("live_requests"))
            for killed in (busy, "gateway-0"):
                os.kill(before[killed]["pid"], signal.SIGKILL)
            assert "".join([*texts, *(delta.text for delta in deltas)]) == expected
            assert models()
        after = stack.serving()
        assert {name for name in after if after[name]["pid"] != before[name]["pid"]} == {busy, "gateway-0"}
        os.kill(after["processor-0"]["pid"], signal.SIGTERM)  # drains, and is replaced
        stack.until(lambda: any(each["child"] == "processor-0" for each in stack.events("died")))
        assert models()
        stack.serving()
        stack.process.send_signal(signal.SIGTERM)
        assert stack.process.wait(90) == 0
    finally:
        stack.process.kill()


@pytest.fixture
def cluster(monkeypatch):
    """Two Ray nodes, each with room for both engines."""
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    node = {"num_cpus": 2, "object_store_memory": 80 << 20}
    cluster = pytest.importorskip("ray.cluster_utils").Cluster(
        initialize_head=True, head_node_args={**node, "include_dashboard": False}
    )
    yield cluster, cluster.add_node(**node)
    cluster.shutdown()


@pytest.mark.distributed
def test_engines_are_on_the_nodes_of_a_cluster_and_a_node_may_leave_it(cluster, environment, tmp_path):
    cluster, leaving = cluster
    flags = ("--data-parallel-size", "2", "--distributed-executor-backend", "ray", "--ray-address", cluster.address)
    flags += ("--port", "0", "--no-http", "--kv-cache-memory-bytes", "32MiB")
    stack = Stack({**environment, "RINGLINE_LOG_FORMAT": "json"}, tmp_path, str(MODEL), *flags)
    try:
        stack.ready()
        groups = cluster.global_state.placement_group_table().values()
        nodes = [node for group in groups for node in group["bundles_to_node_id"].values()]
        assert len(nodes) == len(set(nodes)) == 2
        options = {"max_tokens": 400, "temperature": 0, "ignore_eos": True}
        prompts = [f"Once upon {number} times" for number in range(8)]
        with ringline_client.Client(stack.serving()["processor"]["address"]) as client:
            expected = [client.generate(prompt, **options).choices[0].text for prompt in prompts]
            streams = [client.stream(prompt, **options) for prompt in prompts]
            texts = [next(deltas).text for deltas in streams]
            cluster.remove_node(leaving, allow_graceful=False)
            rest = ["".join(delta.text for delta in deltas) for deltas in streams]
        assert [begun + more for begun, more in zip(texts, rest, strict=True)] == expected
        stack.until(lambda: stack.events("died"))
        services = stack.serving()  # the other node has room for both
        assert [services[f"engine-{number}"]["health"] for number in range(2)] == ["SERVING"] * 2
        (death,) = stack.events("died")
        assert death["child"] in ("engine-0", "engine-1")
        stack.process.send_signal(signal.SIGTERM)
        assert stack.process.wait(90) == 0
    finally:
        stack.process.kill()
