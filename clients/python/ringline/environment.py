"""What a client takes from the environment if its caller names no server: the address, and the token for it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from ringline.server_pool import split_addresses

ADDRESS_VARIABLE = "RINGLINE_ADDRESS"
TOKEN_VARIABLE = "RINGLINE_TOKEN"


class Target(NamedTuple):
    """Which servers a client calls, and the token that it shows them."""

    addresses: list[str]
    token: str | Callable[[], str] | None
    token_name: str
    """Where the token comes from, for errors: the option or the variable."""


def find_target(
    address: str | Sequence[str] | None,
    token: str | Callable[[], str] | None,
    metadata: Mapping[str, str] | None,
) -> Target:
    """The caller's address and token; those of the environment if the caller gives no address.

    The variable's token goes to the variable's address alone: a program that names its servers may serve others, who
    must not act with the rights of its environment. A token, or ``authorization`` in ``metadata``, replaces it.

    Raises ValueError for addresses that are malformed, or if there is none.
    """
    if address is not None:
        return Target(split_addresses(address), token, "token")
    named = os.environ.get(ADDRESS_VARIABLE, "").strip()
    if not named:
        raise ValueError(
            f"address: none given, and {ADDRESS_VARIABLE} is not set: expected host:port, such as 127.0.0.1:50051, "
            "in one of them"
        )
    addresses = split_addresses(named, ADDRESS_VARIABLE)
    of_environment = os.environ.get(TOKEN_VARIABLE, "").strip()
    if token is not None or not of_environment or any(key.lower() == "authorization" for key in metadata or ()):
        return Target(addresses, token, "token")
    return Target(addresses, of_environment, TOKEN_VARIABLE)
