"""Executors whose ranks are actors, on a Ray cluster of two nodes. What they share with those of processes on this host
is in ranks/test_workers.py.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from engine_core.config import DeviceConfig, EngineConfig, ParallelConfig
from engine_core.errors import ConfigError, EngineError, ExecutorError
from engine_core.executor.ranks import child_process, monitor, workers
from engine_core.executor.ranks.workers import RankWorkers
from engine_core.executor.ray import launcher, tcp
from engine_core.executor.ray.launcher import RayLauncher
from engine_core.executor.ray.messages import Place, Placed
from engine_core.llm import LLM
from engine_core.progress import StartupProgress
from tests.processes import alive

from ..ranks.test_local import OPTIONS, PARAMS, PROMPTS
from ..ranks.test_workers import SECONDS, Failure, plan

pytestmark = pytest.mark.distributed

ON_EACH = [{"num_cpus": 1}, {"num_cpus": 2}]
"""The engine is on the first: a stage of two ranks is on the other."""
STORE_BYTES = 80 << 20


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("RAY_USAGE_STATS_ENABLED", "0")
        cluster_utils = pytest.importorskip("ray.cluster_utils")
        cluster = cluster_utils.Cluster(
            initialize_head=True,
            head_node_args={**ON_EACH[0], "object_store_memory": STORE_BYTES, "include_dashboard": False},
        )
        add_worker_node(cluster)
        yield cluster
        cluster.shutdown()


def add_worker_node(cluster: Any) -> Any:
    return cluster.add_node(**ON_EACH[1], object_store_memory=STORE_BYTES)


class ScriptedLauncher(RayLauncher):
    module = "tests.engine_core.executor.ray.scripted_actor"


def config(address: str | None, threads: int | None = None, **parallel: Any) -> EngineConfig:
    options = {"tensor_parallel_size": 2, "worker_start_timeout": 60.0} | parallel
    return EngineConfig(
        device=DeviceConfig(num_threads=threads),
        parallel=ParallelConfig(distributed_executor_backend="ray", ray_address=address, **options),
    )


@contextmanager
def scripted(cluster: Any, **options: Any) -> Iterator[Any]:
    """An executor of ranks without a model, ready for steps, which leaves nothing in this process."""
    before = held()
    executor = RankWorkers(ScriptedLauncher(config(cluster.address, **options), "scripted"))
    try:
        executor.start(None, StartupProgress())  # type: ignore[arg-type]
        executor.start_steps(1, 0.0)
        yield executor
    finally:
        executor.close()
    assert held() == before


def held() -> tuple[list[str], int]:
    """Descriptors and threads of this process."""
    return sorted(os.listdir("/proc/self/fd")), threading.active_count()  # noqa: PTH208


def pids(executor: Any) -> list[int]:
    return [rank.pid for rank in executor.places]


def wait_for(what: Any, seconds: float = SECONDS) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end
        time.sleep(0.02)


def is_free(cluster: Any) -> bool:
    """Whether nothing is reserved."""
    groups = cluster.global_state.placement_group_table().values()
    return cluster.global_state.available_resources().get("CPU") == sum(
        node["Resources"].get("CPU", 0) for node in cluster.global_state.node_table() if node["Alive"]
    ) and all(group["state"] == "REMOVED" for group in groups)


@pytest.fixture(autouse=True)
def _nothing_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """No process, and nothing reserved."""
    cluster = request.getfixturevalue("cluster") if "cluster" in request.fixturenames else None
    yield
    if cluster is not None:
        wait_for(lambda: is_free(cluster))
    wait_for(lambda: not ours())


def ours() -> list[str]:
    """Processes of engines: what speaks to Ray, and actors."""
    titles = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            titles.append(path.read_text(errors="replace").replace("\0", " ").strip())
        except OSError:
            continue
    names = ("ringline engine scripted", f"ringline engine pid {os.getpid()}")
    return [title for title in titles if title.startswith(names)]


def test_calls_and_steps_are_answered_and_ranks_know_their_host(cluster: Any) -> None:
    with scripted(cluster) as executor:
        assert executor.collective_rpc("echo", "a") == [(0, "a"), (1, "a")]
        assert [executor.submit(plan(step)).result().token_ids for step in range(3)] == [
            [[step, 0]] for step in range(3)
        ]
        assert [(rank.rank.ranks_on_host, rank.rank.local) for rank in executor._ranks] == [(2, 0), (2, 0)]
        assert [executor._launcher.config_of(rank.rank).device.num_threads for rank in executor._ranks] == [1, 1]
        titles = [Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0") for pid in pids(executor)]
        assert titles == [f"ringline engine scripted rank tp{tp}/2 pp0/1" for tp in range(2)]
        children = pids(executor)
        executor.close()
        wait_for(lambda: not any(map(alive, children)))


def test_stages_are_spread_over_nodes(cluster: Any) -> None:
    with scripted(cluster, tensor_parallel_size=1, pipeline_parallel_size=2) as executor:
        nodes = [Path(f"/proc/{pid}/status").read_text().partition("PPid:")[2].split()[0] for pid in pids(executor)]
        assert len(set(nodes)) == 2
        assert sorted(executor._launcher.config_of(rank.rank).device.num_threads for rank in executor._ranks) == [1, 2]
        executor.submit(plan(1)).result()


def test_engines_divide_a_node_that_they_must_share() -> None:
    """Five on two nodes of eight CPUs, of one host: three may be on one."""
    launcher = RayLauncher(config(None, tensor_parallel_size=1, data_parallel_size=5), "")
    [rank] = launcher._divide(Placed(2, "127.0.0.1", [Place("node", "host", 8, 2)]))
    assert (launcher.config_of(rank).device.num_threads, rank.ranks_on_host) == (2, 5)


@pytest.fixture
def time_for_causes(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a rank's end, its last words and the cause of a failure to be known. None of these is waited for in full."""
    monkeypatch.setattr(workers, "_CAUSE_SECONDS", SECONDS)
    monkeypatch.setattr(monitor, "_ENDING_SECONDS", SECONDS)
    monkeypatch.setattr(child_process, "_OUTPUT_SECONDS", SECONDS)


@pytest.mark.usefixtures("time_for_causes")
def test_a_rank_that_dies_leaves_its_last_words(cluster: Any) -> None:
    with scripted(cluster) as executor:
        failure = Failure(executor)
        with pytest.raises(
            ExecutorError, match=r"^rank tp1/2 pp0/1 \(pid \d+ on \S+\) has ended.*; its last lines: the last words$"
        ):
            executor.collective_rpc("do", 1, "exit", 3)
        failure.wait()


@pytest.mark.parametrize(("sign", "words"), [(signal.SIGKILL, "has ended"), (signal.SIGSTOP, "has not beaten for 3.")])
def test_a_rank_that_is_killed_or_stopped_ends_all(cluster: Any, sign: signal.Signals, words: str) -> None:
    with scripted(cluster) as executor:
        children, failure = pids(executor), Failure(executor)
        os.kill(children[1], sign)
        assert words in str(failure.wait())
        wait_for(lambda: not any(map(alive, children)))


def test_a_copy_in_a_forked_process_leaves_the_ranks_alone(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with scripted(cluster) as executor:
        with monkeypatch.context() as forked:
            forked.setattr(os, "getpid", lambda: 1)
            executor.fail(ExecutorError("no reply"))
            executor.close()
        assert not executor._launcher._cluster._process.wait(1.0)
        executor.submit(plan(1)).result()


def test_strangers_do_not_delay_the_start(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp, "_PROOF_SECONDS", 1000.0)
    strangers = []

    class Besieged(tcp.TcpListener):
        def __init__(self, host: str) -> None:
            super().__init__(host)
            strangers.extend(socket.create_connection((host, self.port)) for _ in range(10))

    monkeypatch.setattr(launcher, "TcpListener", Besieged)
    with scripted(cluster) as executor:
        executor.submit(plan(1)).result()
        for each in strangers:
            each.close()


def test_the_end_of_what_speaks_to_ray_ends_all(cluster: Any) -> None:
    with scripted(cluster) as executor:
        children, failure = pids(executor), Failure(executor)
        executor._launcher._cluster._process.kill()
        assert "was killed by SIGKILL" in str(failure.wait())
        wait_for(lambda: not any(map(alive, children)))


def test_a_node_that_is_lost_ends_all(cluster: Any) -> None:
    [node] = cluster.worker_nodes
    try:
        with scripted(cluster) as executor:
            children, failure = pids(executor), Failure(executor)
            threading.Thread(target=cluster.remove_node, args=(node, False)).start()
            assert "has ended" in str(failure.wait())
            wait_for(lambda: not any(map(alive, children)))
    finally:
        wait_for(lambda: not cluster.worker_nodes)
        add_worker_node(cluster)


ENGINE = """
import sys
from types import SimpleNamespace
from tests.engine_core.executor.ray import test_launcher
with test_launcher.scripted(SimpleNamespace(address=sys.argv[1])) as executor:
    print(*test_launcher.pids(executor), flush=True)
    executor.collective_rpc("do", 0, "sleep", 60)
"""


@pytest.mark.parametrize("stopped", [False, True])
def test_no_actor_outlives_an_engine_that_is_killed(cluster: Any, stopped: bool) -> None:
    engine = subprocess.Popen([sys.executable, "-c", ENGINE, cluster.address], stdout=subprocess.PIPE, text=True)
    with engine:
        assert engine.stdout is not None
        children = [int(pid) for pid in engine.stdout.readline().split()]
        assert len(children) == 2
        if stopped:
            os.kill(children[1], signal.SIGSTOP)
        engine.kill()
    wait_for(lambda: not any(map(alive, children)))


def refusal(config: EngineConfig) -> str:
    """Why ranks do not start."""
    executor, before = RankWorkers(RayLauncher(config, "")), held()
    with pytest.raises(EngineError) as caught:
        executor.start(None, StartupProgress())  # type: ignore[arg-type]
    executor.close()
    assert held() == before
    return f"{type(caught.value).__name__}: {caught.value}"


@pytest.mark.parametrize(("options", "option"), [
    ({"tensor_parallel_size": 4}, "tensor_parallel_size=4"),
    ({"tensor_parallel_size": 2, "pipeline_parallel_size": 2}, "pipeline_parallel_size=2"),
    ({"tensor_parallel_size": 1, "threads": 3}, "tensor_parallel_size=1"),
])  # fmt: skip
def test_a_cluster_that_is_too_small_is_refused_by_what_its_nodes_have(
    cluster: Any, options: dict[str, Any], option: str
) -> None:
    message = refusal(config(cluster.address, **options))
    assert message.startswith(f"ConfigError: {option} is not usable: expected room for ")
    assert "--num-threads" in message
    assert "has 1 of 1 CPUs free" in message
    assert "has 2 of 2 CPUs free" in message


def test_a_cluster_that_is_full_is_waited_for_as_long_as_the_start_may_take(cluster: Any) -> None:
    with scripted(cluster):
        message = refusal(config(cluster.address, worker_start_timeout=3.0))
    assert message.startswith("ExecutorError: the Ray cluster has not had room for 1 stage(s), each with 2 CPUs of one")
    assert "--worker-start-timeout=3 s; " in message
    assert "has 0 of 2 CPUs free" in message


def test_an_address_that_does_not_answer_is_refused_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "_CONNECT_SECONDS", 8.0)
    start = time.monotonic()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        assert f"no Ray cluster has answered at {address}: --ray-address" in refusal(config(address))
    assert refusal(config(address)).startswith(
        f"ConfigError: ray_address='{address}' is not usable: expected the address of a Ray cluster to which this host "
    )
    assert time.monotonic() - start < 30


def test_without_ray_it_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(
        ConfigError, match=r"expected mp, as Ray is not installed here: pip install 'ringline-server\[ray\]'"
    ):
        RayLauncher(config(None), "")


@pytest.mark.parametrize("address", ["ray://10.0.0.1:10001", "10.0.0.1", "10.0.0.1:x", ""])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match=r"^ray_address=.* is not usable: expected HOST:PORT of a Ray head"):
        RayLauncher(config(address), "")


@pytest.mark.parametrize(
    "sizes", [{"tensor_parallel_size": 2}, {"pipeline_parallel_size": 2}], ids=["tensor", "stages"]
)
def test_answers_are_those_of_one_process(cluster: Any, checkpoint: Path, sizes: dict[str, int]) -> None:
    ray = {"distributed_executor_backend": "ray", "ray_address": cluster.address}
    with LLM(checkpoint, **sizes, **ray, **OPTIONS) as ranks, LLM(checkpoint, **OPTIONS) as alone:  # type: ignore[arg-type]
        assert ranks.generate(PROMPTS, PARAMS) == alone.generate(PROMPTS, PARAMS)
        assert (ranks.numerics, ranks.model_digest) == (alone.numerics, alone.model_digest)
