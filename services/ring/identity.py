"""Who a peer is, and what a ring id looks like."""

from __future__ import annotations

import re
from dataclasses import dataclass

PEER_NAME = re.compile(r"[A-Za-z0-9._-]{1,128}")
CONTRACT_VERSION = 1
MAX_REQUEST_ID_LENGTH = 64


@dataclass(frozen=True, slots=True)
class PeerId:
    """One life of a process. A newer incarnation of the same name supersedes an older one."""

    name: str
    incarnation: int


def ring_id(incarnation: int, counter: int) -> str:
    """The id under which a request goes round; unique as long as incarnations are."""
    return f"{incarnation}-{counter}"


def is_ring_id_of(request_id: str, incarnation: int) -> bool:
    """Whether a submitter of this incarnation may use ``request_id``: nobody can name another's request."""
    prefix, _, counter = request_id.partition("-")
    return (
        len(request_id) <= MAX_REQUEST_ID_LENGTH
        and prefix == str(incarnation)
        and counter.isascii()
        and counter.isdigit()
    )


def hello_problem(name: str, incarnation: int, contract_version: int) -> str | None:
    """What is wrong with a Hello, as a sentence; None if nothing is."""
    if not PEER_NAME.fullmatch(name):
        return f"hello.name: {name[:200]!r} is not a name: expected 1 to 128 characters of [A-Za-z0-9._-]"
    if incarnation == 0:
        return "hello.incarnation: 0 is not an incarnation: expected the start of this process, such as its time"
    if contract_version != CONTRACT_VERSION:
        return f"hello.contract_version: {contract_version} is not spoken here: expected {CONTRACT_VERSION}"
    return None
