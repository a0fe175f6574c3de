"""deploy/kubernetes is what Kubernetes takes, by the schemas of its API, and agrees with the services and images."""

from __future__ import annotations

import re
from typing import Any

import kubernetes_validate
import pytest
import yaml

from services.common.config.addresses import METRICS_PORT_OFFSET, check_addresses
from services.common.config.settings import ServerSettings
from services.common.config.variable_names import known_variables
from services.common.rpc.health import LIVENESS, Health
from tests.deploy.dockerfile import ROOT, stages
from tests.deploy.kustomize import Resource, merge, render
from tests.deploy.test_images import PEERS, PORTS, by_default, read

FOLDER = ROOT / "deploy" / "kubernetes"
RENDERED = {name: render(FOLDER / name) for name in ("base", "one-node", "several-nodes", "gpu", "autoscaling", "tls")}
OLDEST, NEWEST = "1.27", kubernetes_validate.latest_version().removesuffix(".0")
"""The first with probes over gRPC, and the last whose schemas are installed."""
ALL = [
    pytest.param(resource, id=f"{name}-{resource['kind']}-{resource['metadata']['name']}")
    for name, resources in RENDERED.items()
    for resource in resources
]


def one(resources: list[Resource], kind: str, name: str) -> Resource:
    (found,) = (each for each in resources if each["kind"] == kind and each["metadata"]["name"] == name)
    return found


def workload(name: str, overlay: str = "base") -> Resource:
    return one(RENDERED[overlay], "StatefulSet" if name == "engine" else "Deployment", name)


def pod(name: str, overlay: str = "base") -> dict[str, Any]:
    return workload(name, overlay)["spec"]["template"]["spec"]


def container(name: str, overlay: str = "base") -> dict[str, Any]:
    (found,) = pod(name, overlay)["containers"]
    return found


def labels_of(name: str) -> dict[str, str]:
    return workload(name)["spec"]["template"]["metadata"]["labels"]


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@pytest.mark.parametrize("resource", ALL)
def test_the_api_takes_it(resource: Resource, version: str) -> None:
    assert kubernetes_validate.validate(resource, version, strict=True) == version


def test_the_schemas_refuse_what_is_misspelt() -> None:
    wrong = merge(workload("processor"), {"spec": {"template": {"spec": {"enableServiceLink": False}}}})
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, NEWEST, strict=True)


@pytest.mark.parametrize("name", PORTS)
def test_a_pod_is_found_probed_and_drained(name: str) -> None:
    own, port = container(name), PORTS[name]
    assert {each["name"]: each["containerPort"] for each in own["ports"]} == {
        "http" if name == "gateway" else "grpc": port,
        "metrics": port + METRICS_PORT_OFFSET,
    }
    kind, ready, alive = "grpc", {"port": port}, {"port": port, "service": LIVENESS}
    if name == "gateway":
        kind, ready, alive = "httpGet", *({"path": path, "port": "metrics"} for path in ("/health", "/live"))
    assert own["readinessProbe"][kind] == ready
    # Without engines the others are not ready, but must live: they wait for one that loads, and hold its requests.
    assert own["livenessProbe"][kind] == alive
    assert own["startupProbe"][kind] == (ready if name == "engine" else alive)
    (sleep,) = own["lifecycle"]["preStop"].values()
    assert sleep["command"][0] == "sleep"
    grace = pod(name)["terminationGracePeriodSeconds"]
    assert grace > ServerSettings().drain_grace + float(sleep["command"][1])
    annotations = workload(name)["spec"]["template"]["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == str(port + METRICS_PORT_OFFSET)


@pytest.mark.parametrize("name", PORTS)
def test_a_service_has_no_address_but_those_of_its_pods(name: str) -> None:
    """Except that of clients of HTTP, which know one address and balance nothing."""
    service = one(RENDERED["base"], "Service", name)
    labels = labels_of(name)
    assert service["spec"].get("clusterIP") == (None if name == "gateway" else "None")
    assert service["spec"]["selector"] == labels
    assert {each["port"] for each in service["spec"]["ports"]} == {PORTS[name], PORTS[name] + METRICS_PORT_OFFSET}
    budget = one(RENDERED["base"], "PodDisruptionBudget", name)
    assert budget["spec"]["selector"]["matchLabels"] == labels == workload(name)["spec"]["selector"]["matchLabels"]
    assert budget["spec"]["maxUnavailable"] == 1
    if name == "engine":
        assert workload(name)["spec"]["serviceName"] == name


@pytest.mark.parametrize("overlay", RENDERED)
@pytest.mark.parametrize("name", PORTS)
def test_a_pod_may_do_nothing_that_it_need_not(name: str, overlay: str) -> None:
    own, around = container(name, overlay), pod(name, overlay)
    assert own["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    user = around["securityContext"]["runAsUser"]
    assert stages()["runtime"].all("USER") == [f"{user}:{user}"]
    assert around["securityContext"]["runAsNonRoot"]
    assert around["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert around["automountServiceAccountToken"] is False
    assert around["enableServiceLinks"] is False
    assert own["resources"]["limits"]["memory"] == own["resources"]["requests"]["memory"]
    mounted = {each["name"] for each in own["volumeMounts"]}
    claims = workload(name, overlay)["spec"].get("volumeClaimTemplates", ())
    assert mounted == {each["name"] for each in around["volumes"]} | {each["metadata"]["name"] for each in claims}


@pytest.mark.parametrize("overlay", RENDERED)
@pytest.mark.parametrize("name", PORTS)
def test_a_service_is_told_what_it_understands(name: str, overlay: str) -> None:
    told = {each["name"]: each["value"] for each in container(name, overlay)["env"]}
    assert set(told) <= known_variables()
    for variable, peer in PEERS.items():
        if variable in told:
            assert told[variable] == f"{peer}:{PORTS[peer]}"
            check_addresses(variable, (told[variable],))
    file = "compose.gpu.yaml" if (overlay, name) == ("gpu", "engine") else "compose.yaml"
    assert container(name, overlay)["image"] == by_default(read(file)["services"][name]["image"])


def test_only_the_ring_reaches_its_inner_services() -> None:
    for name, sources in (("engine", ("processor", "detokenizer")), ("detokenizer", ("processor",))):
        policy = one(RENDERED["base"], "NetworkPolicy", name)["spec"]
        assert policy["podSelector"]["matchLabels"] == labels_of(name)
        by_port = {rule["ports"][0]["port"]: rule.get("from") for rule in policy["ingress"]}
        assert by_port.keys() == {PORTS[name], PORTS[name] + METRICS_PORT_OFFSET}
        allowed = [each["podSelector"]["matchLabels"] for each in by_port[PORTS[name]]]
        assert allowed == [labels_of(source) for source in sources]


def test_an_engine_on_a_gpu_has_one() -> None:
    own = container("engine", "gpu")
    assert own["resources"]["limits"]["nvidia.com/gpu"] == "1"
    told = {each["name"]: each["value"] for each in own["env"]}
    assert told["RINGLINE_DEVICE"] == "cuda"
    assert "RINGLINE_MODEL" in told
    assert {each["mountPath"] for each in own["volumeMounts"]} == {"/tmp", "/models", "/cache"}


@pytest.mark.parametrize("name", PORTS)
def test_with_tls_a_service_has_its_own_secret_and_is_probed_by_http(name: str) -> None:
    own = container(name, "tls")
    told = {each["name"]: each["value"] for each in own["env"]}
    (mount,) = (each for each in own["volumeMounts"] if each["name"] == "certs")
    assert {each: told[f"RINGLINE_TLS_{each}_FILE"] for each in ("CA", "CERT", "KEY")} == {
        "CA": f"{mount['mountPath']}/ca.crt",
        "CERT": f"{mount['mountPath']}/tls.crt",
        "KEY": f"{mount['mountPath']}/tls.key",
    }
    (volume,) = (each for each in pod(name, "tls")["volumes"] if each["name"] == "certs")
    assert volume["secret"]["secretName"] == f"ringline-{name}-tls"
    assert told.items() >= {each["name"]: each["value"] for each in container(name)["env"]}.items()
    started = "/health" if name == "engine" else "/live"
    for probe, path in (("startupProbe", started), ("readinessProbe", "/health"), ("livenessProbe", "/live")):
        plain = container(name)[probe]
        assert own[probe] == {"httpGet": {"path": path, "port": "metrics"}} | {
            word: value for word, value in plain.items() if word not in ("grpc", "httpGet")
        }
        assert path in Health([]).pages


def test_engines_are_scaled_by_a_series_that_they_have() -> None:
    scaler = one(RENDERED["autoscaling"], "HorizontalPodAutoscaler", "engine")["spec"]
    target = scaler["scaleTargetRef"]
    assert one(RENDERED["autoscaling"], target["kind"], target["name"])["apiVersion"] == target["apiVersion"]
    (metric,) = scaler["metrics"]
    (rule,) = yaml.safe_load((FOLDER / "autoscaling" / "prometheus-adapter.yaml").read_text())["rules"]["custom"]
    assert metric["pods"]["metric"]["name"] == rule["name"]["as"]
    series = rule["seriesQuery"].partition("{")[0]
    assert re.search(
        rf"^\| `{series}` \| gauge \|", (ROOT / "docs" / "reference" / "metrics.md").read_text(), re.MULTILINE
    )


def test_a_merge_is_by_name_where_lists_have_names_and_null_removes() -> None:
    old = {"containers": [{"name": "a", "env": [{"name": "x", "value": "1"}], "args": ["1"]}, {"name": "b"}]}
    new = {"containers": [{"name": "a", "env": [{"name": "y", "value": "2"}], "args": ["2"]}]}
    assert merge({"probe": {"grpc": {}, "period": 5}}, {"probe": {"grpc": None, "exec": {}}}) == {
        "probe": {"period": 5, "exec": {}}
    }
    assert merge(old, new) == {
        "containers": [
            {"name": "a", "env": [{"name": "x", "value": "1"}, {"name": "y", "value": "2"}], "args": ["2"]},
            {"name": "b"},
        ]
    }
