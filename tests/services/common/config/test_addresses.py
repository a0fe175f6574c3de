"""What is an address, and what is refused by the option that has it."""

import pytest

from services.common.config.addresses import is_dns_name, valid_address
from services.common.config.options import SettingError
from services.common.config.settings import DetokenizerSettings, ProcessorSettings


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("engine-0.engines:50061", True),
        ("localhost:1", True),
        ("engines.ring.svc.cluster.local.:1", True),
        ("10.0.0.1:65535", False),
        ("[::1]:50051", False),
        ("unix:/run/e.sock", False),
    ],
)
def test_an_address_is_taken_and_dns_is_asked_for_it_if_it_is_a_name(address, name):
    assert valid_address(address)
    assert ProcessorSettings(engines=(address,)).engines == (address,)
    assert is_dns_name(address) == name


@pytest.mark.parametrize(
    "address", ["", "localhost", ":1", "host:0", "host:65536", "host:x", "::1:5", "unix:", "a..b:1", f"{'x' * 64}:1"]
)
def test_what_is_no_address_is_refused_by_the_option_that_has_it(address):
    assert not valid_address(address)
    with pytest.raises(SettingError, match=r"^engines="):
        DetokenizerSettings(engines=(address,))
