"""Variables that look like ours and are none are told; those of other services, and of other programs, are not."""

import click
import pytest

from engine_core.config import EngineConfig
from services.common.config.flags import given_options, with_settings
from services.common.config.options import is_service_link, settings_of
from services.common.config.settings import GatewaySettings
from services.common.config.stack_settings import StackSettings
from services.common.config.variable_names import (
    ENGINE_OPTIONS,
    hidden_by_service_links,
    known_variables,
    unknown_variables,
)


def test_the_engines_options_are_known_without_the_engine():
    declared = tuple(setting.name for setting in settings_of(EngineConfig()))
    assert declared == ENGINE_OPTIONS, "write the engine's options into services/common/config/variable_names.py"


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("RINGLINE_MAX_NUM_SEQ", "RINGLINE_MAX_NUM_SEQS"),
        ("RINGLINE_MAX_MODEL_LENGTH", "RINGLINE_MAX_MODEL_LEN"),
        ("RINGLINE_ADRESS", "RINGLINE_ADDRESS"),
        ("RINGLINE_DETOKENIZER", "RINGLINE_DETOKENIZERS"),
        ("RINGLINE_ENABLE_DBO", None),  # not RINGLINE_ENABLE_PREFIX_CACHING
        ("RINGLINE_ZZZ_UNLIKE_ANY_OTHER", None),
        ("RINGLINE_", None),
    ],
)
def test_what_nobody_reads_is_told_with_what_it_is_nearest_to(name, nearest):
    assert list(unknown_variables({name: "1", "PATH": "/bin", "RINGLINE_MODEL": "m"})) == [(name, nearest)]


def test_what_some_process_of_the_ring_reads_is_not_told():
    assert list(unknown_variables(dict.fromkeys(known_variables(), "1"))) == []


@pytest.mark.parametrize(
    ("service", "hidden"),
    [
        ("RINGLINE", ["RINGLINE_PORT"]),
        ("RINGLINE_METRICS", ["RINGLINE_METRICS_PORT"]),
        ("RINGLINE_HTTP", ["RINGLINE_HTTP_PORT"]),
        ("RINGLINE_PROCESSOR", []),
        ("RINGLINE_ENGINE", []),
    ],
)
def test_what_kubernetes_sets_for_services_of_our_name_is_neither_read_nor_unknown(service, hidden, monkeypatch):
    links = {
        f"{service}_SERVICE_HOST": "10.0.0.7",
        f"{service}_SERVICE_PORT": "50051",
        f"{service}_SERVICE_PORT_GRPC": "50051",
        f"{service}_PORT": "tcp://10.0.0.7:50051",
        f"{service}_PORT_50051_TCP": "tcp://10.0.0.7:50051",
        f"{service}_PORT_50051_TCP_PROTO": "tcp",
        f"{service}_PORT_50051_TCP_PORT": "50051",
        f"{service}_PORT_50051_TCP_ADDR": "10.0.0.7",
    }
    assert list(unknown_variables(links)) == []
    assert hidden_by_service_links(links) == hidden
    for name, value in links.items():
        monkeypatch.setenv(name, value)
    given = {}
    command = with_settings([*settings_of(GatewaySettings()), *settings_of(StackSettings())])(
        click.Command("any", callback=lambda **values: given.update(given_options(values)))
    )
    command.main([], standalone_mode=False)
    assert given == {}


def test_no_option_is_named_as_a_service_link():
    assert [name for name in known_variables() if is_service_link(name, "")] == []
