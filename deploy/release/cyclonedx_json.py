"""CycloneDX 1.6 by its own library: the check of a bill against the schema, and the bill of an npm package."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL

from deploy.release.versions import ReleaseError

_MODULES = "node_modules/"
_SHA512 = "sha512-"
"""In base64 behind it, in npm's locks."""


def checked(text: str, name: str) -> str:
    """``text``; raises ``ReleaseError`` if the schema does not accept it."""
    wrong = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    if wrong is not None:
        raise ReleaseError(f"{name} is no CycloneDX 1.6: {wrong}")
    return text


def npm_bill(lock: Path) -> str:
    """What ``npm install`` of a package brings in, by its lock."""
    packages = json.loads(lock.read_text())["packages"]
    main = _component(packages[""]["name"], packages[""])
    parts = {place: _component(name, facts) for place, name, facts in _used(packages)}
    bill = Bom(components=parts.values())
    bill.metadata.component = main
    direct = (parts.get(f"{_MODULES}{name}") for name in packages[""].get("dependencies", ()))
    bill.register_dependency(main, [part for part in direct if part is not None])
    return str(JsonV1Dot6(bill).output_as_string(indent=2)) + "\n"


def _used(packages: Mapping[str, Mapping[str, str]]) -> Iterator[tuple[str, str, Mapping[str, str]]]:
    """Place, name and facts of all that is neither for developers nor the user's choice."""
    for place, facts in packages.items():
        if place and not any(facts.get(left_out) for left_out in ("dev", "peer", "optional")):
            yield place, place.rpartition(_MODULES)[2], facts


def _component(name: str, facts: Mapping[str, str]) -> Component:
    scope, _, plain = name.rpartition("/")
    url = PackageURL("npm", scope or None, plain, facts["version"])
    hashes = []
    if (integrity := facts.get("integrity", "")).startswith(_SHA512):
        digest = base64.b64decode(integrity.removeprefix(_SHA512)).hex()
        hashes.append(HashType(alg=HashAlgorithm.SHA_512, content=digest))
    return Component(
        name=plain,
        group=scope or None,
        version=facts["version"],
        type=ComponentType.LIBRARY,
        purl=url,
        bom_ref=str(url),
        hashes=hashes,
    )
