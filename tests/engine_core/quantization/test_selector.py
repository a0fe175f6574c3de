"""Which quantization is chosen, and what it needs."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from engine_core.errors import ConfigError
from engine_core.kernels.library import KernelsUnavailableError
from engine_core.quantization import selector
from engine_core.quantization.int4 import Int4
from engine_core.quantization.int8 import Int8
from engine_core.quantization.selector import choose_quantization


def test_the_option_chooses_the_method(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose_quantization(None) is None
    chosen = choose_quantization("int8")
    assert chosen is not None
    assert isinstance(chosen.method(("lm_head",)), Int8)
    assert "int8 layers" in chosen.describe()
    for group_size, expected in ((None, 32), (128, 128)):
        chosen = choose_quantization("int4", group_size=group_size)
        assert chosen is not None
        method = chosen.method(("lm_head",))
        assert isinstance(method, Int4)
        assert method.format.group_size == expected
    none_built = KernelsUnavailableError("no library of native kernels was built")
    for quantization, load in (("int8", "load_int8_kernels"), ("int4", "load_kernels")):
        monkeypatch.setattr(selector, load, Mock(side_effect=none_built))
        with pytest.raises(ConfigError, match=rf"quantization='{quantization}'.*needs native kernels: no library"):
            choose_quantization(quantization)
