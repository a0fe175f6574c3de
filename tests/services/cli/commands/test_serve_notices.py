"""What ``ringline serve`` says beforehand of addresses that may surprise."""

from dataclasses import replace

import pytest

from services.cli.commands.serve import address_notices
from services.cli.supervise.stack import StackOptions
from services.common.config.settings import ProcessorSettings
from services.common.config.stack_settings import StackSettings

SETTINGS = ProcessorSettings()
OPTIONS = StackOptions(host="127.0.0.1", port=7000, metrics_port=None, engine_settings=(), values={}, http_port=8000)


def notices(options, settings=SETTINGS, stack=None):
    return list(address_notices(settings, stack or StackSettings(), options))


def test_the_usual_addresses_need_no_word():
    assert notices(OPTIONS) == []
    assert notices(replace(OPTIONS, http_port=None)) == []


def test_a_port_that_was_moved_for_another_program_is_said():
    assert notices(replace(OPTIONS, http_port=8001)) == [
        "port 8000 is in use: HTTP is at port 8001; --http-port chooses another"
    ]
    assert notices(replace(OPTIONS, http_port=8001), stack=StackSettings(http_port=8001)) == []


def test_a_given_port_is_said_to_be_that_of_grpc():
    assert notices(replace(OPTIONS, values={"port": 7000})) == [
        "gRPC listens on port 7000 (--port), HTTP on port 8000 (--http-port)"
    ]


@pytest.mark.parametrize(
    ("auth", "tls", "lacks"),
    [
        ({}, None, "keys (--api-key) and TLS (--tls-cert-file)"),
        ({"api_key": ("k",)}, None, "TLS (--tls-cert-file)"),
        ({}, "cert.pem", "keys (--api-key)"),
        ({"api_key": ("k",)}, "cert.pem", None),
    ],
)
def test_a_host_that_others_reach_is_said_with_what_it_lacks(auth, tls, lacks):
    settings = replace(
        SETTINGS, auth=replace(SETTINGS.auth, **auth), tls=replace(SETTINGS.tls, tls_cert_file=tls, tls_key_file=tls)
    )
    said = notices(replace(OPTIONS, host="192.0.2.1"), settings)
    assert said == ([] if lacks is None else [f"--host 192.0.2.1: others may connect, without {lacks}"])
    assert all(f"without {lacks}" in said for said in notices(replace(OPTIONS, host="0.0.0.0"), settings))
