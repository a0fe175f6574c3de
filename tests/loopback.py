"""This machine, which no proxy of the environment may stand before: for libraries and programs that tests use."""

from __future__ import annotations

import os

_VARIABLES = ("http_proxy", "https_proxy", "grpc_proxy", "all_proxy")
DEAD_PROXY = {
    spelling: value
    for names, value in ((_VARIABLES, "http://127.0.0.1:9"), (("no_proxy",), "localhost"))
    for name in names
    for spelling in (name, name.upper())
}
"""The environment of a machine with a proxy that reaches nothing here, and excepts one spelling of loopback."""
_OWN_NAMES = "localhost,127.0.0.1,::1"


def dial_directly() -> None:
    """Add this machine's names to those that no program dials through a proxy, however it spells the variable."""
    others = os.environ.get("no_proxy") or os.environ.get("NO_PROXY")
    for name in ("no_proxy", "NO_PROXY"):
        os.environ[name] = f"{_OWN_NAMES},{others}" if others else _OWN_NAMES
