"""The Helm chart makes what the kustomizations make, takes what its values say, and refuses what cannot be meant."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sys
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from services.common.config.settings import ServerSettings
from services.common.config.variable_names import known_variables
from tests.deploy import chart
from tests.deploy.chart import CHART, Resource, Values, refused, rendered
from tests.deploy.dockerfile import ROOT
from tests.deploy.kustomize import render
from tests.deploy.test_images import FOREIGN_VARIABLES, PORTS
from tests.deploy.test_kubernetes import FOLDER, NEWEST, OLDEST, RENDERED, one
from tests.programs import output_of, run
from tests.ring import Ring

SERVICES = tuple(PORTS)
PAGES = (CHART / "README.md", ROOT / "docs" / "tutorials" / "kubernetes.md")
ADDED_LABELS = frozenset(f"app.kubernetes.io/{name}" for name in ("instance", "managed-by", "version")) | {
    "helm.sh/chart",
    "ringline/engines",
}
"""Labels of the chart by which releases and sets of engines are told apart."""
OVERLAYS: Mapping[str, Values] = {
    "base": {},
    **{name: yaml.safe_load((CHART / "sizes" / f"{name}.yaml").read_text()) for name in ("one-node", "several-nodes")},
    "gpu": {"engine": {"gpu": {"count": 1}}},
    "autoscaling": {"engine": {"autoscaling": {"enabled": True}}},
    "tls": {"tls": {"enabled": True, "secretNames": {name: f"ringline-{name}-tls" for name in SERVICES}}},
}
"""By kustomization, the values that mean the same."""
TUNED = {
    "cpuLimit": "8",
    "memory": "3Gi",
    "startupSeconds": 1801,
    "options": {"log-level": "debug", "drain-grace": 90.5, "max-calls": 10_000_000, "memory-budget": "512MiB"},
    "extraEnv": [{"name": "TZ", "value": "UTC"}],
    "resources": {"limits": {"ephemeral-storage": "1Gi"}},
    "nodeSelector": {"pool": "a"},
    "tolerations": [{"key": "pool", "operator": "Exists"}],
    "affinity": {"podAntiAffinity": {}},
    "priorityClassName": "high",
    "podAnnotations": {"a": "b"},
    "podLabels": {"c": "d"},
}
"""Values that every service has."""
SCALED = {"autoscaling": {"enabled": True, "minReplicas": 3, "maxReplicas": 9, "cpuPercent": 50}}
PEER = [{"namespaceSelector": {"matchLabels": {"team": "a"}}}]
MATRIX: Mapping[str, Values] = {
    "named": {
        "fullnameOverride": "other",
        "image": {
            "registry": "registry.example.com/team/",
            "prefix": "rl",
            "tag": "1.2.3",
            "pullPolicy": "Always",
            "pullSecrets": ["pull"],
        },
        "serviceAccountName": "ring",
        "podSecurityContext": {"runAsUser": 1234},
        "securityContext": {"privileged": False},
        "test": {"maxTokens": 0},
    },
    "model": {
        "model": {
            "name": "org/model",
            "servedName": "small",
            "revision": "v1",
            "hubToken": {"secretName": "hub", "key": "hf"},
            "volume": {"size": "9Gi", "storageClass": "fast"},
        }
    },
    "claim": {"model": {"volume": {"kind": "claim", "claimName": "checkpoints", "readOnly": True}}},
    "directory": {"model": {"volume": {"kind": "hostPath", "path": "/srv/models"}}},
    "scratch": {"model": {"volume": {"kind": "emptyDir", "size": "20Gi"}}},
    "tuned": {
        "engine": {**TUNED, "replicas": 3, "cpu": 2.5},
        **{name: {**TUNED, "replicas": 4, "cpu": 1} for name in SERVICES if name != "engine"},
    },
    "scaled": {
        "engine": {"autoscaling": {"enabled": True, "minReplicas": 2, "maxReplicas": 4, "waitingRequests": 7}},
        **{name: SCALED for name in SERVICES if name != "engine"},
    },
    "gpus": {
        "engine": {
            "gpu": {"count": 2, "runtimeClass": "nvidia", "kernelCache": "5Gi", "sharedMemory": "1Gi"},
            "options": {"tensor-parallel-size": 2, "limit-mm-per-prompt": {"image": 4}},
        }
    },
    "groups": {
        "engine": {"replicas": 2, "options": {"zone": "a", "max-num-seqs": 8}},
        "engineGroups": {"b": {"replicas": 1, "options": {"zone": "b"}, "nodeSelector": {"zone": "b"}}},
    },
    "secured": {
        "tls": {
            "enabled": True,
            "secretNames": {name: f"own-{name}" for name in SERVICES},
            "certManager": {
                "enabled": True,
                "issuerName": "authority",
                "issuerKind": "ClusterIssuer",
                "duration": "48h",
                "renewBefore": "12h",
                "extraHosts": ["llm.example.com"],
            },
        },
        "auth": {
            name: {"secretName": name.lower(), "key": "k"} for name in ("tokens", "jwks", "tenants", "serviceToken")
        },
        "test": {"token": {"secretName": "mine", "key": "t"}},
    },
    "published": {
        "gateway": {
            "service": {"type": "LoadBalancer", "annotations": {"x": "y"}, "loadBalancerSourceRanges": ["10.0.0.0/8"]},
            "ingress": {
                "enabled": True,
                "className": "nginx",
                "host": "llm.example.com",
                "tlsSecretName": "llm",
                "annotations": {"nginx.ingress.kubernetes.io/proxy-buffering": "on"},
            },
        }
    },
    "policies": {
        "networkPolicy": {"engineFrom": PEER, "processorFrom": PEER, "gatewayFrom": PEER},
        "disruptionBudget": {"maxUnavailable": "50%"},
        "topologySpread": {
            "topologyKey": "topology.kubernetes.io/zone",
            "maxSkew": 2,
            "whenUnsatisfiable": "DoNotSchedule",
        },
        "monitoring": {
            "scrapeAnnotations": False,
            "serviceMonitor": {"enabled": True, "interval": "5s", "labels": {"release": "prometheus"}},
        },
    },
    "without": {name: {"enabled": False} for name in ("networkPolicy", "disruptionBudget", "topologySpread")},
}
"""Values that between them set every one that there is."""
HOSTILE = 'it\'s "a"\n}: {b: c} # \\'
"""Of a variable: what would be YAML if nobody quoted it."""
REFUSED: tuple[tuple[Values, str], ...] = (
    ({"engine": {"replica": 2}}, "at '/engine': additional properties 'replica' not allowed"),
    ({"engine": {"options": {"max-num-seq": 2}}}, "additional properties 'max-num-seq' not allowed"),
    ({"engine": {"options": {"max-num-seqs": "many"}}}, "got string, want integer"),
    ({"engine": {"options": {"host": "0.0.0.0"}}}, "additional properties 'host' not allowed"),
    ({"engine": {"memory": "8 GB"}}, "at '/engine/memory': '8 GB' does not match pattern"),
    ({"engineGroups": {"main": {}}}, "invalid propertyName 'main'"),
    ({"engineGroups": {"b": {"replica": 2}}}, "at '/engineGroups/b': additional properties 'replica' not allowed"),
    ({"model": {"volume": {"kind": "pvc"}}}, "value must be one of 'perEngine', 'claim', 'hostPath', 'emptyDir'"),
    ({"model": {"volume": {"kind": "claim"}}}, "model.volume.claimName must name the claim to mount at /models"),
    ({"model": {"volume": {"claimName": "a"}}}, "set the kind to claim, or leave the name out"),
    ({"model": {"volume": {"kind": "hostPath"}}}, "model.volume.path must be the directory on the node"),
    ({"model": {"volume": {"readOnly": True}}}, "a volume of kind perEngine begins empty: use claim or hostPath"),
    ({"engine": {"gpu": {"count": 2}}}, "set engine.options.tensor-parallel-size to 2, or the count to 1"),
    ({"engineGroups": {"b": {"gpu": {"count": 2}}}}, "engineGroups.b.gpu.count is 2, but an engine of 1 ranks"),
    ({"engine": {"gpu": {"sharedMemory": "1Gi"}}}, "engine.gpu.count is 0: give the engines GPUs, or leave it out"),
    ({"engine": {"autoscaling": {"enabled": True, "minReplicas": 9}}}, "engine.autoscaling.minReplicas is 9, above"),
    ({"gateway": {"autoscaling": {"enabled": True, "minReplicas": 9}}}, "gateway.autoscaling.minReplicas is 9, above"),
    (
        {"auth": {"tokens": {"secretName": "a"}}},
        "auth.tokens needs tls.enabled: tokens would cross the network",
    ),
    ({"auth": {"serviceToken": {"secretName": "a"}}}, "auth.serviceToken needs tls.enabled"),
    (
        {"tls": {"certManager": {"enabled": True}}},
        "is true, but tls.enabled is false: set both",
    ),
    ({"tls": {"enabled": True, "certManager": {"enabled": True}}}, "tls.certManager.issuerName must name an issuer"),
    ({"gateway": {"ingress": {"enabled": True}}}, "gateway.ingress.host must be the name under which clients find it"),
    ({"gateway": {"service": {"loadBalancerSourceRanges": ["10.0.0.0/8"]}}}, "is ClusterIP: set it to LoadBalancer"),
    ({"model": {"hubToken": {"secretName": "a}, optional: {b: c"}}}, "/model/hubToken/secretName': 'a}, optional: {b"),
    ({"model": {"hubToken": {"secretName": "a", "key": "k\nb"}}}, "does not match pattern"),
    ({"model": {"volume": {"kind": "hostPath", "path": "/a\r\nb"}}}, "at '/model/volume/path'"),
    ({"model": {"volume": {"storageClass": "a" * 254}}}, "at '/model/volume/storageClass': maxLength"),
    ({"serviceAccountName": "a: b"}, "at '/serviceAccountName'"),
    ({"image": {"registry": "a #"}}, "at '/image/registry'"),
    ({"image": {"pullSecrets": ["a, b"]}}, "at '/image/pullSecrets/0'"),
    ({"gateway": {"ingress": {"enabled": True, "host": "a/b"}}}, "at '/gateway/ingress/host'"),
    ({"gateway": {"extraEnv": [{"name": "A=B"}]}}, "at '/gateway/extraEnv/0/name'"),
    ({"gateway": {"podLabels": {"a": "x" * 64}}}, "at '/gateway/podLabels/a'"),
    ({"gateway": {"podLabels": {"app.kubernetes.io/name": "engine"}}}, "invalid propertyName 'app.kubernetes.io/name'"),
    ({"gateway": {"cpu": -1}}, "at '/gateway/cpu'"),
    ({"gateway": {"replicas": 1e20}}, "at '/gateway/replicas'"),
    (
        {"fullnameOverride": "a" * 40, "engineGroups": {"b": {}, "b" * 9: {}}},
        "at most 52 fit, so choose a shorter release",
    ),
    ({"fullnameOverride": "a" * 41}, "at most 40 fit, so choose a shorter release, or set fullnameOverride"),
)


@pytest.mark.parametrize("name", ["true", "null", "on", "off"])
def test_names_that_yaml_takes_for_something_else_stay_texts(name: str) -> None:
    secrets = {key: {"secretName": name, "key": name} for key in ("tokens", "jwks", "tenants", "serviceToken")}
    claim = {"kind": "claim", "claimName": name}
    objects = rendered(
        {
            "tls": {"enabled": True, "secretNames": dict.fromkeys(SERVICES, name)},
            "auth": secrets,
            "model": {"volume": claim, "hubToken": {"secretName": name, "key": name}},
            "engineGroups": {name: {"priorityClassName": name}, "123": {}},
            "image": {"pullSecrets": [name]},
            "serviceAccountName": name,
            "gateway": {"extraEnv": [{"name": "A", "value": HOSTILE}], "options": {"log-level": "info"}},
            "processor": {"podLabels": {"a": name}, "nodeSelector": {"b": "1e3"}},
        },
        release=name,
    )
    sets = [one for one in objects if one["kind"] in ("StatefulSet", "Deployment")]
    assert {one["metadata"]["name"] for one in sets} >= {
        f"{name}-engine-123",
        f"{name}-engine-{name}",
        f"{name}-gateway",
    }
    for each in objects:
        kubernetes_validate.validate(each, NEWEST, strict=True)
        labels = each["metadata"]["labels"]
        assert labels["app.kubernetes.io/instance"] == name
        assert all(isinstance(label, str) for label in labels.values())
    (gateway,) = [one for one in sets if one["metadata"]["name"] == f"{name}-gateway"]
    variables = gateway["spec"]["template"]["spec"]["containers"][0]["env"]
    assert {"name": "A", "value": HOSTILE} in variables


@pytest.mark.parametrize("release", ["123", "a.b", "1e3"])
def test_a_release_whose_name_no_service_can_have_is_refused(release: str) -> None:
    text, refusal = chart.template({}, release)
    assert not text
    assert "choose another release, or set fullnameOverride" in refusal
    assert (
        rendered({"fullnameOverride": "r1"}, release)[0]["metadata"]["labels"]["app.kubernetes.io/instance"] == release
    )


def plain(value: Any, name: str = "") -> Any:
    """An object without the chart's own labels and prefix, and where their order means nothing, its lists sorted."""
    if isinstance(value, dict):
        return {
            key: plain(str(inner) if name in ("requests", "limits") else inner, key)
            for key, inner in value.items()
            if key not in ADDED_LABELS
        }
    if isinstance(value, list):
        items = [plain(item) for item in value]
        return (
            items
            if all(isinstance(item, str) for item in items)
            else sorted(items, key=partial(json.dumps, sort_keys=True))
        )
    return value.removeprefix("r1-") if isinstance(value, str) else value


def by_identity(resources: list[Resource]) -> dict[str, Any]:
    named = {f"{each['kind']} {plain(each)['metadata']['name']}": plain(each) for each in resources}
    assert len(named) == len(resources)
    return named


def of_release(resources: list[Resource]) -> list[Resource]:
    """Without those of `helm test`."""
    return [each for each in resources if "helm.sh/hook" not in each["metadata"].get("annotations", {})]


def pods(resources: list[Resource]) -> Iterator[tuple[str, dict[str, Any]]]:
    for each in resources:
        if "template" in each.get("spec", {}):
            yield each["metadata"]["labels"]["app.kubernetes.io/name"], each["spec"]["template"]["spec"]


def test_helm_finds_nothing_to_say() -> None:
    said = output_of(chart.program("helm"), "lint", "--strict", CHART)
    assert not [line for line in said.splitlines() if line.startswith(("[WARNING]", "[ERROR]"))], said


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_chart_makes_what_a_kustomization_makes(overlay: str) -> None:
    made = of_release(rendered({**OVERLAYS[overlay], "image": {"tag": "latest"}}))
    assert by_identity(made) == by_identity(RENDERED[overlay])


@pytest.mark.parametrize("overlay", RENDERED)
def test_kubectl_makes_of_a_kustomization_what_is_tested(overlay: str) -> None:
    text = output_of(chart.program("kubectl"), "kustomize", FOLDER / overlay)
    assert by_identity(list(yaml.load_all(text, yaml.CSafeLoader))) == by_identity(render(FOLDER / overlay))


@cache
def made_of(case: str) -> list[Resource]:
    return rendered(MATRIX[case])


@cache
def by_default() -> list[Resource]:
    """What the API takes if it takes deploy/kubernetes/base, as other tests show."""
    return of_release(rendered())


@pytest.mark.parametrize("version", [pytest.param(OLDEST, marks=pytest.mark.wide), NEWEST])
@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=() if case in ("gpus", "published") else pytest.mark.wide) for case in MATRIX]
)
def test_the_api_takes_what_the_values_make(case: str, version: str) -> None:
    for resource in made_of(case):
        # Certificates and monitors are other projects' kinds.
        if resource["kind"] not in ("Certificate", "ServiceMonitor") and resource not in by_default():
            kubernetes_validate.validate(resource, version, strict=True)


@pytest.mark.parametrize("case", MATRIX)
def test_a_pod_has_what_it_is_told_of(case: str) -> None:
    for name, pod in pods(made_of(case)):
        (own,) = pod["containers"]
        told = {each["name"]: each.get("value") for each in own["env"]}
        assert len(told) == len(own["env"]), f"{name} is told twice"
        assert told.keys() <= known_variables() | FOREIGN_VARIABLES | {"TZ"}
        assert pod["terminationGracePeriodSeconds"] > float(told.get("RINGLINE_DRAIN_GRACE", 30)) + 5
        claims = {"models"} if name == "engine" else set()
        volumes = {each["name"] for each in pod["volumes"]}
        assert {each["name"] for each in own["volumeMounts"]} <= volumes | claims


def paths(values: Values, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, value in values.items():
        yield (*above, key)
        if isinstance(value, dict):
            yield from paths(value, (*above, key))


def test_every_value_is_tried() -> None:
    tried = {".".join(path) for values in (*MATRIX.values(), *OVERLAYS.values()) for path in paths(values)}
    assert {path for path, _, _ in chart.value_rows()} - tried == set()


@pytest.mark.wide
@pytest.mark.parametrize("case", MATRIX)
def test_every_value_has_an_effect(case: str) -> None:
    whole = rendered(MATRIX[case])
    for path in paths(MATRIX[case]):
        less = json.loads(json.dumps(MATRIX[case]))
        *above, last = path
        inner = less
        for name in above:
            inner = inner[name]
        del inner[last]
        text, _ = chart.template(less)
        assert list(filter(None, yaml.load_all(text, yaml.CSafeLoader))) != whole, f"without {path} all is as it was"


@pytest.mark.parametrize(("values", "words"), REFUSED, ids=[words for _, words in REFUSED])
def test_a_mistake_is_refused_in_words(values: Values, words: str) -> None:
    assert words in refused(values)


def test_the_default_of_the_drain_is_that_of_the_services() -> None:
    (grace,) = re.findall(r'"drain-grace" \| default (\d+)', (CHART / "templates" / "_pod.tpl").read_text())
    assert float(grace) == ServerSettings().drain_grace


def test_options_become_variables_as_services_read_them() -> None:
    told = {each["name"]: each.get("value") for each in env_of(made_of("tuned"), "processor")}
    assert told["RINGLINE_MAX_CALLS"] == "10000000"
    assert told["RINGLINE_DRAIN_GRACE"] == "90.5"
    assert told["RINGLINE_MEMORY_BUDGET"] == "512MiB"
    origins = rendered({"gateway": {"options": {"cors-origins": ["https://a", "https://b"]}}})
    assert {"name": "RINGLINE_CORS_ORIGINS", "value": "https://a,https://b"} in env_of(origins, "gateway")
    pictures = {"name": "RINGLINE_LIMIT_MM_PER_PROMPT", "value": '{"image":4}'}
    assert pictures in env_of(made_of("gpus"), "engine")


def env_of(resources: list[Resource], service: str) -> list[dict[str, Any]]:
    (found,) = (pod for name, pod in pods(resources) if name == service)
    return found["containers"][0]["env"]


def test_a_group_of_engines_is_a_set_of_its_own_behind_the_same_name() -> None:
    made = made_of("groups")
    main, group = one(made, "StatefulSet", "r1-engine"), one(made, "StatefulSet", "r1-engine-b")
    service = one(made, "Service", "r1-engine")["spec"]["selector"].items()
    for each, zone in ((main, "a"), (group, "b")):
        labels = each["spec"]["template"]["metadata"]["labels"]
        assert service <= labels.items()
        assert each["spec"]["selector"]["matchLabels"].items() <= labels.items()
        assert each["spec"]["serviceName"] == "r1-engine"
        env = each["spec"]["template"]["spec"]["containers"][0]["env"]
        assert {"name": "RINGLINE_ZONE", "value": zone} in env
        assert {"name": "RINGLINE_MAX_NUM_SEQS", "value": "8"} in env
    assert main["spec"]["selector"] != group["spec"]["selector"]


def test_two_releases_in_one_namespace_do_not_meet() -> None:
    first, second = by_default(), of_release(rendered(release="r2"))
    names = {(each["kind"], each["metadata"]["name"]) for each in first}
    assert not names & {(each["kind"], each["metadata"]["name"]) for each in second}
    labels = one(first, "StatefulSet", "r1-engine")["spec"]["template"]["metadata"]["labels"]
    assert not one(second, "Service", "r2-engine")["spec"]["selector"].items() <= labels.items()
    told = {each["value"] for each in env_of(second, "processor")}
    assert told == {"r2-engine:50061", "r2-detokenizer:50071"}


def test_a_certificate_names_its_service_and_role() -> None:
    made = made_of("secured")
    for name in SERVICES:
        spec = one(made, "Certificate", f"r1-{name}")["spec"]
        assert spec["uris"] == [f"spiffe://ringline/{name}"]
        assert {f"r1-{name}", "localhost"} <= set(spec["dnsNames"])
        assert ("llm.example.com" in spec["dnsNames"]) == (name in ("processor", "gateway"))
        assert {"server auth", "client auth"} <= set(spec["usages"])
        assert spec["secretName"] == f"own-{name}"


def test_notes_tell_the_next_commands() -> None:
    values = json.dumps(MATRIX["secured"])
    command = (chart.program("helm"), "install", "r1", CHART, "--dry-run=client", "--values", "-")
    said = output_of(*command, input=values, env={"KUBECONFIG": os.devnull}).partition("NOTES:")[2]
    assert "kubectl --namespace default wait deployment/r1-gateway --for=condition=Available" in said
    assert "port-forward service/r1-gateway 8000" in said
    assert 'curl --cacert ca.crt --header "Authorization: Bearer $TOKEN" https://localhost:8000/v1/models' in said
    assert """go-template={{index .data "ca.crt" | base64decode}}""" in said
    assert "Nothing is encrypted" not in said


def test_versions_are_those_of_the_product() -> None:
    described = yaml.safe_load((CHART / "Chart.yaml").read_text())
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert (described["version"], described["appVersion"]) == (version, version)
    assert described["kubeVersion"] == f">={OLDEST}.0-0"


def test_the_readme_and_the_schema_have_the_values_that_there_are() -> None:
    assert chart.VALUES.written() == chart.VALUES.make(), "run `python -m tests.deploy.chart`"
    read = (CHART / "values.schema.json").read_text()
    assert read == chart.schema_text(chart.schema()) + "\n", "run `python -m tests.deploy.chart`"


def test_each_option_of_the_schema_is_a_variable_of_its_service() -> None:
    """And each that the chart itself sets is one that it may not have twice."""
    for service in SERVICES:
        names = chart.options_of(service)
        assert names
        made = env_of(made_of("secured"), service) + env_of(made_of("model"), service)
        own = {each["name"].removeprefix("RINGLINE_").lower() for each in made} - {"hf_token"}
        assert own <= chart.SET_BY_THE_CHART
        assert not own & {name.replace("-", "_") for name in names}


def test_the_request_of_helm_test_is_answered(ring: Ring) -> None:
    pod = one(rendered(), "Pod", "r1-test")
    health, request = pod["spec"]["containers"]
    assert health["command"] == ["ringline", "health", "r1-processor:50051"]
    interpreter, flag, script = request["command"]
    assert (interpreter, flag) == ("python", "-c")
    assert script.rstrip() == (CHART / "files" / "request.py").read_text().rstrip()
    told = {each["name"]: each["value"] for each in request["env"]}
    assert told == {"URL": "http://r1-gateway:8000", "MAX_TOKENS": "4"}
    said = output_of(sys.executable, "-c", script, env={**told, "URL": ring.http}).splitlines()
    assert said[0] == f"{ring.http} serves tiny"
    assert re.fullmatch(r"it answers '.+'", said[1])
    done = run(sys.executable, "-c", script, env={**told, "URL": "http://127.0.0.1:1"})
    assert done.returncode == 1
    assert done.stderr.startswith("http://127.0.0.1:1 cannot be reached: ")


def documented() -> Iterator[tuple[str, str, str]]:
    """The blocks of the pages about the chart: page, language and code."""
    for page in PAGES:
        for language, code in re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL):
            yield page.name, language, code


def test_documents_show_values_that_the_chart_takes() -> None:
    shown = [yaml.safe_load(code) for _, language, code in documented() if language == "yaml"]
    values = [each for each in shown if "kind" not in each]
    assert len(values) > 6
    for each in values:
        assert rendered(each)


def test_documents_show_commands_that_helm_takes(tmp_path: Path) -> None:
    lines = [line for _, _, code in documented() for line in code.splitlines() if line.startswith("helm ")]
    installs = [line.partition(" #")[0] for line in lines if line.split()[1] in ("install", "upgrade")]
    assert len(installs) > 6
    (tmp_path / "deploy").symlink_to(ROOT / "deploy")
    (tmp_path / "ring.yaml").write_text("model: {servedName: assistant}")
    for line in installs:
        words = [word for word in shlex.split(line)[2:] if word not in ("--reuse-values", "--create-namespace")]
        done = run(chart.program("helm"), "template", *words, cwd=tmp_path, env={"KUBECONFIG": os.devnull})
        assert ("engine.replica=2" in line) == bool(done.returncode), done.stderr
        if done.returncode:
            (said,) = (code for _, _, code in documented() if "INSTALLATION FAILED" in code)
            assert said.partition("INSTALLATION FAILED: ")[2].strip() in done.stderr


def test_the_kustomization_in_the_tutorial_is_one(tmp_path: Path) -> None:
    (shown,) = (code for _, language, code in documented() if language == "yaml" and "kind: Kustomization" in code)
    shutil.copytree(ROOT / "deploy", tmp_path / "deploy", ignore=shutil.ignore_patterns("helm"))
    (tmp_path / "ring").mkdir()
    (tmp_path / "ring" / "kustomization.yaml").write_text(shown)
    text = output_of(chart.program("kubectl"), "kustomize", tmp_path / "ring")
    made = list(yaml.load_all(text, yaml.CSafeLoader))
    engine = one(made, "StatefulSet", "engine")["spec"]
    assert engine["replicas"] == 2
    (own,) = engine["template"]["spec"]["containers"]
    assert own["image"] == "registry.example.com/team/ringline-engine:0.1.0"
    assert {"name": "RINGLINE_MODEL", "value": "Qwen/Qwen3-4B"} in own["env"]
    assert {each["metadata"]["namespace"] for each in made} == {"llm"}
