"""Adapters without tensors, for tests of what an engine does with them."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

from engine_core.errors import AdapterError
from engine_core.lora.adapter import AdapterFile


def adapter_file(contents: str, nbytes: int = 10) -> AdapterFile:
    """An adapter of these contents."""
    return AdapterFile(sha256(contents.encode()).hexdigest(), nbytes, 8, "base")


def write_adapter(folder: Path, contents: str) -> str:
    """A folder that ``read_file`` reads; returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text("{}")
    (folder / "adapter_model.safetensors").write_text(contents)
    return str(folder)


def read_file(path: str) -> AdapterFile:
    """In place of ``open_adapter``."""
    try:
        contents = (Path(path) / "adapter_model.safetensors").read_text()
    except OSError:
        raise AdapterError(f"{path} has no adapter") from None
    if "half" in contents:
        raise AdapterError(f"{path} ends in the middle")
    return adapter_file(contents)
