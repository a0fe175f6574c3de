"""Addresses at which a server cannot listen."""

from __future__ import annotations

import pytest

from services.common.config.errors import FatalError
from services.common.config.settings import ServerSettings
from services.common.rpc.bind_address import check_bindable


@pytest.mark.parametrize("host", ["no.such.host.invalid", "x" * 70, "a..b", "\udcff", "\u202ehost"])
def test_a_host_that_is_none_is_named(host: str) -> None:
    with pytest.raises(FatalError, match="is not known: choose an interface of this machine with --host"):
        check_bindable(ServerSettings(host=host))
