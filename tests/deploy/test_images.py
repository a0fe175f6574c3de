"""The Dockerfile and compose.yaml agree with the services: names, ports, options, health checks, limits.

What an engine is needed for is tried by ``make compose-test``.
"""

from __future__ import annotations

import asyncio
import re
import sys
import tomllib
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from click.testing import CliRunner
from prometheus_client import CollectorRegistry

from services.cli.commands.certs import ROLES
from services.cli.main import cli
from services.common.config.addresses import (
    DETOKENIZER_PORT,
    ENGINE_PORT,
    GATEWAY_PORT,
    METRICS_PORT_OFFSET,
    PROCESSOR_PORT,
    check_addresses,
)
from services.common.config.settings import DetokenizerSettings, ServerSettings
from services.common.config.variable_names import known_variables
from services.common.rpc.health import Health
from services.common.telemetry.metrics_endpoint import MetricsEndpoint
from tests.compose.engine import FIRST_OWN_LAYER, Failed, added_bytes
from tests.deploy.dockerfile import ROOT, arguments, lineage, stages
from tests.programs import output_of, run
from tests.ring import Ring

HEALTHCHECK = ROOT / "deploy" / "healthcheck"
PORTS = {
    "processor": PROCESSOR_PORT,
    "detokenizer": DETOKENIZER_PORT,
    "engine": ENGINE_PORT,
    "gateway": GATEWAY_PORT,
}
PEERS = {
    "RINGLINE_ENGINES": "engine",
    "RINGLINE_DETOKENIZERS": "detokenizer",
    "RINGLINE_PROCESSORS": "processor",
}
"""By the variables that say where they are."""
FOREIGN_VARIABLES = {"HF_TOKEN"}
_VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")


def read(name: str) -> dict[str, Any]:
    return yaml.safe_load((ROOT / name).read_text())


def by_default(text: str) -> str:
    """With no variable set."""
    return _VARIABLE.sub(lambda match: match[2] or "", text)


COMPOSE, GPU, TLS = read("compose.yaml"), read("compose.gpu.yaml"), read("compose.tls.yaml")
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]


OF_RANKS = ("engine-tp2", "engine-ray")
"""Engines of profiles."""


def seconds(text: str) -> float:
    assert text.endswith("s")
    return float(text.removesuffix("s"))


@pytest.mark.parametrize("kind", PORTS)
def test_an_image_runs_its_service_as_nobody_special(kind: str) -> None:
    stage = stages()[kind]
    assert stage.words("ENTRYPOINT") == ["ringline", "supervise", kind]  # no shell between: signals reach the process
    users = [user for one in lineage(kind) for user in one.all("USER")[-1:]]
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", users[0])  # a number, or Kubernetes cannot know that it is not root
    assert stage.all("EXPOSE") == [f"{PORTS[kind]} {PORTS[kind] + METRICS_PORT_OFFSET}"]


@pytest.mark.parametrize("kind", PORTS)
def test_a_health_check_asks_its_own_service(kind: str) -> None:
    (check,) = stages()[kind].all("HEALTHCHECK")
    options, _, command = check.partition("CMD ")
    assert yaml.safe_load(command) == [HEALTHCHECK.name, str(PORTS[kind] + METRICS_PORT_OFFSET)]
    timeout = re.search(r"--timeout=(\S+)", options)
    own_timeout = re.search(r"read -rt (\d+)", HEALTHCHECK.read_text())
    assert timeout is not None
    assert own_timeout is not None
    assert int(own_timeout[1]) < seconds(timeout[1])


def test_a_health_check_is_in_every_image_and_starts_no_python() -> None:
    (copied,) = stages()["runtime"].all("COPY")
    assert (ROOT / copied.split()[0], Path(copied.split()[1])) == (
        HEALTHCHECK,
        Path("/usr/local/bin") / HEALTHCHECK.name,
    )
    assert f"!{HEALTHCHECK.relative_to(ROOT)}" in (ROOT / ".dockerignore").read_text().split()
    assert HEALTHCHECK.read_text().startswith("#!/usr/bin/env bash\n")
    assert "python" not in HEALTHCHECK.read_text().lower().replace("starts a python", "")


async def test_the_health_check_follows_health() -> None:
    health = Health(["some.Service"])
    endpoint = MetricsEndpoint(CollectorRegistry(), "127.0.0.1", 0, health.pages)

    async def healthy() -> bool:
        check = await asyncio.create_subprocess_exec(HEALTHCHECK, str(endpoint.port), stderr=asyncio.subprocess.DEVNULL)
        return await check.wait() == 0

    await health.start()
    assert not await healthy()
    await health.set_ready(True)
    assert await healthy()
    await health.drain()
    assert not await healthy()
    endpoint.close()
    assert not await healthy()


@pytest.mark.parametrize("service", PORTS)
def test_each_service_answers_health_checks_at_its_metrics_port(service: str, ring: Ring) -> None:
    port = urlsplit(ring.state.services[service].metrics or "").port
    output_of(HEALTHCHECK, str(port))


@pytest.mark.parametrize("kind", ["processor", "detokenizer", "gateway"])
def test_a_cpu_tier_takes_nothing_of_the_engine(kind: str) -> None:
    names = list(stages())
    sources = [rest.split("=")[1].split()[0] for rest in stages()[kind].all("COPY") if "--from=" in rest]
    assert sources == ["cpu-tier"]
    installed = [line for stage in lineage("cpu-tier") for line in stage.all("RUN") if "pip" in line]
    assert installed
    assert not any("torch" in line or "engine" in line for line in installed)
    assert names.index(kind) < names.index("engine-packages")  # the classic builder makes every stage before it


def test_everything_is_installed_at_its_one_version() -> None:
    """What services need, that of tracing and of vLLM's contract with it, as their options may ask for them."""
    wanted = [extra for line in stages()["packages"].all("RUN") for extra in re.findall(r'p\["([\w-]+)"\]', line)]
    assert wanted == ["dependencies", "optional-dependencies"]
    assert any('("tracing", "smg")' in line for line in stages()["packages"].all("RUN"))
    environment = " ".join(stages()["packages"].all("ENV"))
    assert "PIP_CONSTRAINT=/build/constraints.txt" in environment
    for stage in stages().values():
        for line in stage.all("RUN"):
            assert "--no-build-isolation" not in line
            assert not re.search(r"\b(sed|grep|awk)\b.*constraints", line)  # every pin holds, that of triton too
            assert not re.search(r"https?://", line)


@pytest.mark.parametrize("name", SERVICES)
def test_a_container_is_bounded_and_shut_in(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["restart"] == "unless-stopped"
    assert service["mem_limit"]
    assert service["pids_limit"] > 0
    assert set(service["logging"]["options"]) == {"max-size", "max-file"}
    assert not service.get("privileged")
    assert all(by_default(port).startswith("127.0.0.1:") for port in service.get("ports", ()))
    image = by_default(service["image"])
    assert re.fullmatch(r"[a-z0-9/-]+:[\w.-]+", image), "a name without a registry's, and a tag"


def test_paths_of_the_host_are_those_of_the_repository() -> None:
    for compose in (COMPOSE, GPU, TLS):
        for service in compose["services"].values():
            for volume in map(by_default, service.get("volumes", ())):
                source, target = volume.split(":")[:2]
                assert target.startswith("/")
                if source.startswith("./"):
                    assert (ROOT / source).is_dir()
                    assert volume.endswith(":ro")
                else:
                    assert source in compose["volumes"]


@pytest.mark.parametrize("kind", PORTS)
def test_a_service_is_built_from_its_target(kind: str) -> None:
    service = SERVICES[kind]
    assert service["build"]["target"] == kind
    assert set(service["build"]["args"]) <= set(arguments())
    assert by_default(service["build"]["args"]["BASE_IMAGE"]) == arguments()["BASE_IMAGE"]
    assert kind in by_default(service["image"])
    assert seconds(service["stop_grace_period"]) > ServerSettings().drain_grace


@pytest.mark.parametrize("compose", [COMPOSE, GPU, TLS], ids=["compose", "gpu", "tls"])
def test_what_a_service_is_told_it_understands(compose: dict[str, Any]) -> None:
    for kind in (*PORTS, *OF_RANKS):
        variables = set(compose["services"].get(kind, {}).get("environment", ()))
        assert {name for name in variables if not name.startswith("RAY_")} <= known_variables() | FOREIGN_VARIABLES
    in_images = re.findall(r"\b(RINGLINE_\w+)=", (ROOT / "Dockerfile").read_text())
    assert set(in_images) <= known_variables()


def test_services_find_each_other_by_name() -> None:
    for kind, service in SERVICES.items():
        told = {name: str(value) for name, value in (service.get("environment") or {}).items()}
        for variable, peer in PEERS.items():
            if variable in told:
                assert told[variable] == f"{peer}:{PORTS[peer]}"
                check_addresses(variable, (told[variable],))
                assert service["depends_on"][peer] == {"condition": "service_healthy"}, kind
    assert {"RINGLINE_ENGINES", "RINGLINE_DETOKENIZERS"} <= set(SERVICES["processor"]["environment"])
    assert "RINGLINE_ENGINES" in SERVICES["detokenizer"]["environment"]
    assert "RINGLINE_PROCESSORS" in SERVICES["gateway"]["environment"]
    assert DetokenizerSettings().server.port == DETOKENIZER_PORT


def test_processors_share_a_range_of_ports() -> None:
    for published, port in zip(
        SERVICES["processor"]["ports"], (PROCESSOR_PORT, PROCESSOR_PORT + METRICS_PORT_OFFSET), strict=True
    ):
        host, ports, inside = by_default(published).split(":")
        first, last = map(int, ports.split("-"))
        assert (host, first, int(inside)) == ("127.0.0.1", port, port)
        assert last > first
        others = {PORTS["engine"], PORTS["detokenizer"]}
        assert not (others | {each + METRICS_PORT_OFFSET for each in others}) & set(range(first, last + 1))


def test_the_gateway_has_one_port_which_stays_the_same() -> None:
    """Of a range, a container that starts again takes another."""
    (published,) = SERVICES["gateway"]["ports"]
    assert by_default(published) == f"127.0.0.1:{GATEWAY_PORT}:{GATEWAY_PORT}"


def test_docker_compose_1_29_knows_every_word() -> None:
    """It takes nothing that came with version 2."""
    for compose in (COMPOSE, GPU, TLS):
        assert {name for name in compose if not name.startswith("x-")} <= {"services", "volumes"}
        for service in compose["services"].values():
            assert not {"develop", "extends", "include", "attach", "pull_policy"} & set(service)
            assert "start_interval" not in service.get("healthcheck", ())
            assert all(isinstance(port, str) for port in service.get("ports", ()))


@pytest.mark.parametrize("kind", OF_RANKS)
def test_engines_of_several_ranks_are_engines_like_any_other(kind: str) -> None:
    """Found by the same name, with the same options and limits; only where a profile asks for them."""
    service, engine = SERVICES[kind], SERVICES["engine"]
    assert service["networks"] == {"default": {"aliases": ["engine"]}}
    assert service["profiles"] == [kind.removeprefix("engine-")]
    assert service["environment"].items() >= engine["environment"].items()
    for name in ("volumes", "mem_limit", "cpus", "pids_limit", "stop_grace_period"):
        assert service[name] == engine[name]
    assert TLS["services"][kind] == TLS["services"]["engine"]


def test_nodes_of_a_ray_cluster_have_ray_and_room_for_its_objects() -> None:
    (line,) = (line for line in stages()["engine-packages"].all("RUN") if "$EXTRAS" in line)
    assert "engine $EXTRAS" in line
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    head, engine = SERVICES["ray-head"], SERVICES["engine-ray"]
    for service in (head, engine):
        assert service["build"]["target"] == "engine"
        assert service["build"]["args"]["EXTRAS"] in extras
        assert by_default(service["image"]) == "ringline-engine-ray:latest"
        command = " ".join(service["entrypoint"])
        (objects,) = re.findall(r"--object-store-memory=(\d+)", command)
        assert int(objects) < int(service["shm_size"].removesuffix("m")) * 2**20
        assert "--disable-usage-stats" in command
        assert service["environment"].items() >= {"RAY_USAGE_STATS_ENABLED": "0"}.items()
    assert head["healthcheck"] == {"disable": True}  # nothing of ours listens there
    address = engine["environment"]["RINGLINE_RAY_ADDRESS"]
    assert f"--address={address} " in engine["entrypoint"][-1]
    assert f"--port={address.partition(':')[2]}" in head["entrypoint"]
    assert engine["entrypoint"][-1].endswith("&& exec ringline supervise engine")  # so that it is the first process


def test_a_gpu_is_asked_for() -> None:
    engine = GPU["services"]["engine"]
    assert engine["build"]["args"] == {"DEVICE": "cuda"}
    assert "DEVICE" in arguments()
    assert engine["deploy"]["resources"]["reservations"]["devices"][0]["capabilities"] == ["gpu"]


def mounts(service: dict[str, Any]) -> dict[str, str]:
    """Where a service sees which volume, and how."""
    return dict(volume.split(":", 1) for volume in service["volumes"])


def test_certificates_are_made_before_services_start(tmp_path: Path) -> None:
    maker = TLS["services"]["certs"]
    program, command, directory, *options = maker["entrypoint"]
    assert program == "ringline"
    assert maker["image"] == SERVICES["processor"]["image"]
    assert maker["build"]["target"] == "processor"
    assert maker["healthcheck"] == {"disable": True}  # it ends, and must count as having done so
    done = CliRunner().invoke(cli, [command, str(tmp_path), *options], standalone_mode=False)
    assert done.exit_code == 0
    written = {f"{directory}/{path.name}" for path in tmp_path.iterdir()}
    assert written == set(mounts(maker).values()), "all of it is in volumes, as the rest is read-only"
    (made,) = (line for line in stages()["runtime"].all("RUN") if "install -d" in line)
    assert set(made.split(" -g ringline ")[1].split()) == written  # a volume takes its owner from what is there
    for kind in PORTS:
        assert TLS["services"][kind]["depends_on"] == {"certs": {"condition": "service_completed_successfully"}}


def test_each_service_sees_its_own_key_alone() -> None:
    making = mounts(TLS["services"]["certs"])
    assert set(TLS["volumes"]) == set(making)
    for kind in PORTS:
        assert kind in ROLES
        service = TLS["services"][kind]
        ((volume, target),) = mounts(service).items()
        own = target.removesuffix(":ro")
        assert target != own
        assert making[volume] == own == f"/certs/{kind}"
        assert service["environment"] == {
            "RINGLINE_TLS_CA_FILE": f"{own}/ca.crt",
            "RINGLINE_TLS_CERT_FILE": f"{own}/tls.crt",
            "RINGLINE_TLS_KEY_FILE": f"{own}/tls.key",
        }
        assert not [each for each in SERVICES[kind].get("volumes", ()) if "/certs" in each]


def test_prometheus_asks_each_service_where_its_metrics_are() -> None:
    jobs = read("deploy/prometheus/prometheus.yml")["scrape_configs"]
    found = {job["job_name"]: job["dns_sd_configs"][0] for job in jobs}
    assert set(found) == set(PORTS)
    for kind, discovery in found.items():
        assert discovery["names"] == [kind]
        assert discovery["port"] == PORTS[kind] + METRICS_PORT_OFFSET


def test_grafana_finds_what_is_mounted() -> None:
    targets = {volume.split(":")[1]: ROOT / volume.split(":")[0] for volume in SERVICES["grafana"]["volumes"]}
    (provider,) = read("deploy/grafana/provisioning/dashboards/ringline.yml")["providers"]
    assert provider["options"]["path"] in targets
    (source,) = read("deploy/grafana/provisioning/datasources/prometheus.yml")["datasources"]
    assert source["url"] == "http://prometheus:9090"
    assert "prometheus" in SERVICES


def test_compose_test_says_that_it_needs_an_engine(tmp_path: Path) -> None:
    done = run(sys.executable, "-m", "tests.compose", env={"DOCKER_HOST": f"unix://{tmp_path}/none.sock"})
    assert done.returncode == 2
    assert done.stderr.startswith("This needs a Docker engine")
    assert "Traceback" not in done.stderr


def test_what_is_judged_of_an_image_is_what_its_dockerfile_adds() -> None:
    (first, *_) = lineage("processor")[-1].all("RUN")
    assert first.startswith(FIRST_OWN_LAYER)
    layers = [
        "0 ENTRYPOINT",
        "93000000 COPY /opt/ringline",
        f"4000 RUN /bin/sh -c {first}",
        "431000000 RUN apt-get install fat",
    ]
    assert added_bytes("\n".join(layers)) == 93_004_000
    with pytest.raises(Failed):
        added_bytes(layers[-1])
