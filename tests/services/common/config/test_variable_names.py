"""Variables that look like ours and are none are told; those of other services, and of other programs, are not."""

import pytest

from engine_core.config import EngineConfig
from services.common.config.options import settings_of
from services.common.config.variable_names import ENGINE_OPTIONS, known_variables, unknown_variables


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
        ("RINGLINE_ENABLE_LORA", None),  # not RINGLINE_ENABLE_PREFIX_CACHING
        ("RINGLINE_ZZZ_UNLIKE_ANY_OTHER", None),
        ("RINGLINE_", None),
    ],
)
def test_what_nobody_reads_is_told_with_what_it_is_nearest_to(name, nearest):
    assert list(unknown_variables({name: "1", "PATH": "/bin", "RINGLINE_MODEL": "m"})) == [(name, nearest)]


def test_what_some_process_of_the_ring_reads_is_not_told():
    assert list(unknown_variables(dict.fromkeys(known_variables(), "1"))) == []


def test_what_kubernetes_sets_for_services_of_our_name_is_not_told():
    links = {
        "RINGLINE_PROCESSOR_SERVICE_HOST": "10.0.0.7",
        "RINGLINE_PROCESSOR_SERVICE_PORT": "50051",
        "RINGLINE_PROCESSOR_SERVICE_PORT_GRPC": "50051",
        "RINGLINE_PROCESSOR_PORT": "tcp://10.0.0.7:50051",
        "RINGLINE_PROCESSOR_PORT_50051_TCP": "tcp://10.0.0.7:50051",
        "RINGLINE_PROCESSOR_PORT_50051_TCP_ADDR": "10.0.0.7",
    }
    assert list(unknown_variables(links)) == []
