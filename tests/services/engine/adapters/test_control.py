"""How adapters become known: at the start, from the watched folder, and by calls; and what is refused."""

from __future__ import annotations

import asyncio
import errno
import shutil
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from engine_core.errors import AdapterError, ConfigError
from engine_core.lora.adapter import AdapterFile
from services.engine.adapters import control as module
from services.engine.adapters import registry, retries
from services.engine.adapters.control import MAX_CALLS, AdapterControl
from services.engine.adapters.modules import LoRAModule
from services.engine.adapters.registry import AdapterRegistry
from services.ring.errors import Code, Reason, Refused
from tests.services.engine.adapters.adapter_files import adapter_file, read_file, write_adapter
from tests.waiting import until


def control(lora_dir: Path | None = None) -> AdapterControl:
    return AdapterControl(AdapterRegistry("base"), read_file, None if lora_dir is None else str(lora_dir))


def digest(made: AdapterControl, name: str) -> str | None:
    known = made.registry.find(name)
    return None if known is None else known.file.digest


@asynccontextmanager
async def watched(made: AdapterControl, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    monkeypatch.setattr(module, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(module, "_POLL_SHARE", 0)
    task = asyncio.create_task(made.watch())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_adapters_of_the_start_are_known(tmp_path: Path) -> None:
    made = control()
    modules = [LoRAModule("a", write_adapter(tmp_path / "x", "x")), LoRAModule("b", write_adapter(tmp_path / "y", "y"))]
    await made.begin(modules, "base")
    assert digest(made, "a") == adapter_file("x").digest
    assert len(made.registry) == 2
    assert made.registry.is_complete


@pytest.mark.parametrize(
    ("contents", "name", "base", "error", "text"),
    [
        ("half", "a", None, AdapterError, "--lora-modules a: .* ends in the middle"),
        ("x", "base", None, ConfigError, "'base' is the model's own"),
        ("x", "a", "other", ConfigError, "a to be made for base, and it says other"),
    ],
)
async def test_an_adapter_of_the_start_that_cannot_be_used_ends_it(
    tmp_path: Path, contents: str, name: str, base: str | None, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        await control().begin([LoRAModule(name, write_adapter(tmp_path / "x", contents), base)], "base")


async def test_an_adapter_of_the_start_may_call_the_model_as_it_was_given(tmp_path: Path) -> None:
    made = control()
    await made.begin([LoRAModule("a", write_adapter(tmp_path / "x", "x"), "org/base")], "base", "org/base")
    assert made.registry.find("a") is not None


async def test_a_watched_folder_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected a folder that can be read"):
        await control(tmp_path / "missing").begin([], "base")


async def test_a_watched_folder_is_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_adapter(tmp_path / "a", "x")
    made = control(tmp_path)
    await made.begin([], "base")
    assert not made.registry.is_complete
    async with watched(made, monkeypatch):
        await until(lambda: made.registry.is_complete)
        first = made.registry.find("a")
        assert first is not None
        made.registry.use("request", first)
        write_adapter(tmp_path / "a", "half")
        write_adapter(tmp_path / "b", "z")
        await until(lambda: digest(made, "b"))
        assert digest(made, "a") == adapter_file("x").digest, "it stays as it was while it is half written"
        write_adapter(tmp_path / "a", "y")
        await until(lambda: digest(made, "a") == adapter_file("y").digest)
        assert made.registry.used_by("request") is first
        assert made.registry.wanted("a", adapter_file("x").digest) is first
        shutil.rmtree(tmp_path / "a")
        await until(lambda: made.registry.find("a") is None)
        assert digest(made, "b")


async def test_one_that_could_not_be_loaded_is_told_again_once_it_is_sound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A processor that was refused believes that it is not known here."""
    made = control()
    await made.begin([LoRAModule(name, write_adapter(tmp_path / name, name)) for name in "ab"], "base")
    news = made.registry.listen()
    while news:
        news.take()
    write_adapter(tmp_path / "b", "other")
    for name in "ab":
        made.suspect(made.registry.find(name))
    async with watched(made, monkeypatch):
        await until(lambda: news)
        assert [generation.name for generation in news.take()[0]] == ["a"]
        await until(lambda: len(made._suspects) == 1)
        assert not news
        monkeypatch.setattr(module, "SUSPECT_SECONDS", 0)
        made.suspect(made.registry.find("b"))
        write_adapter(tmp_path / "b", "b")
        await until(lambda: news)
        assert [generation.name for generation in news.take()[0]] == ["b"], "it is looked at until it is sound"
    assert not made._suspects


async def test_files_that_are_as_they_were_again_are_told_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Processors were refused while they were broken."""
    write_adapter(tmp_path / "a", "x")
    made = control(tmp_path)
    async with watched(made, monkeypatch):
        await until(lambda: made.registry.is_complete)
        news = made.registry.listen()
        while news:
            news.take()
        read = []
        monkeypatch.setattr(made, "_open", lambda path: read.append(path) or read_file(path))
        write_adapter(tmp_path / "a", "half")
        await until(lambda: read)
        assert not news
        write_adapter(tmp_path / "a", "x")
        await until(lambda: news)
        assert [generation.name for generation in news.take()[0]] == ["a"]


async def test_the_same_adapter_is_taken_from_where_it_was_given_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder that it was read from before may be gone."""
    made = control(tmp_path)
    for place in ("upload/x", "backup/x", "a"):
        write_adapter(tmp_path / place, "x")
    await made.load("a", "upload/x", replace=False)
    known, before = await made.load("a", "backup/x", replace=False)
    assert (known.path, before) == (str(tmp_path / "backup/x"), None)
    async with watched(made, monkeypatch):
        await until(lambda: made.registry.is_complete)
        assert known.path == str(tmp_path / "backup/x"), "which is sound"
        shutil.rmtree(tmp_path / "backup")
        shutil.rmtree(tmp_path / "a")
        await until(lambda: made._folder._settled == {})
        write_adapter(tmp_path / "a", "x")
        await until(lambda: known.path == str(tmp_path / "a"))


async def test_an_adapter_that_breaks_its_reader_is_an_adapter_that_cannot_be_read(tmp_path: Path) -> None:
    def breaks(path: str) -> AdapterFile:
        raise MemoryError

    made = AdapterControl(AdapterRegistry("base"), breaks, str(tmp_path))
    write_adapter(tmp_path / "x", "x")
    with pytest.raises(Refused, match="x cannot be read: MemoryError"):
        await made.load("a", "x", replace=False)


async def test_a_folder_does_not_take_a_name_that_stands_for_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = control(tmp_path / "dir")
    write_adapter(tmp_path / "dir" / "a", "y")
    await made.begin([LoRAModule("a", write_adapter(tmp_path / "own", "x"))], "base")
    async with watched(made, monkeypatch):
        await until(lambda: made.registry.is_complete)
        write_adapter(tmp_path / "dir" / "b", "z")
        await until(lambda: digest(made, "b"))
        assert digest(made, "a") == adapter_file("x").digest
        for name in ("a", "b"):
            shutil.rmtree(tmp_path / "dir" / name)
        await until(lambda: digest(made, "b") is None)
        assert digest(made, "a") == adapter_file("x").digest


async def test_a_folder_takes_its_name_once_that_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the log advises; and one that was too much, once another is unloaded."""
    for of in (module, registry):
        monkeypatch.setattr(of, "MAX_ADAPTERS", 2)
    made = control(tmp_path / "dir")
    for name in ("a", "b"):
        write_adapter(tmp_path / "dir" / name, name)
    modules = [LoRAModule(name, write_adapter(tmp_path / name, "x")) for name in ("a", "c")]
    await made.begin(modules, "base")
    async with watched(made, monkeypatch):
        await until(lambda: made._without_room.keys() == {"a", "b"})
        assert digest(made, "a") == adapter_file("x").digest
        made.unload("a")
        await until(lambda: len(made.registry) == 2)
        assert digest(made, "a") == adapter_file("a").digest
        made.unload("c")
        await until(lambda: digest(made, "b") == adapter_file("b").digest)
        assert not made._without_room


class Away:
    """Reads adapters of a file system that is away at times."""

    def __init__(self) -> None:
        self.is_away = True
        self.tries = 0

    def open(self, path: str) -> AdapterFile:
        self.tries += 1
        if self.is_away:
            raise AdapterError(f"{path} cannot be read") from OSError(errno.EIO, "input/output error")
        return read_file(path)


async def test_a_folder_that_could_not_be_read_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "FIRST_SECONDS", 0.01)
    away = Away()
    made = AdapterControl(AdapterRegistry("base"), away.open, str(tmp_path))
    write_adapter(tmp_path / "a", "x")
    await made.begin([], "base")
    async with watched(made, monkeypatch):
        await until(lambda: away.tries > 2)
        assert digest(made, "a") is None
        away.is_away = False
        await until(lambda: digest(made, "a") == adapter_file("x").digest)


async def test_a_call_makes_an_adapter_known_and_another_forgets_it(tmp_path: Path) -> None:
    made = control(tmp_path)
    path = write_adapter(tmp_path / "x", "x")
    known, before = await made.load("a", "x", replace=False)
    assert (known.file.digest, known.path, before) == (adapter_file("x").digest, path, None)
    assert await made.load("a", path, replace=False) == (known, None), "the same may be said again"
    write_adapter(tmp_path / "y", "y")
    with pytest.raises(Refused) as refusal:
        await made.load("a", "y", replace=False)
    assert (refusal.value.status.code, refusal.value.status.reason) == (Code.ALREADY_EXISTS, Reason.ADAPTER_EXISTS)
    assert digest(made, "a") == adapter_file("x").digest
    later, before = await made.load("a", "y", replace=True)
    assert (later.file.digest, before) == (adapter_file("y").digest, known)
    assert made.unload("a") is later
    with pytest.raises(Refused, match="there is no adapter 'a' here") as refusal:
        made.unload("a")
    assert (refusal.value.status.code, refusal.value.status.reason) == (Code.NOT_FOUND, Reason.ADAPTER_NOT_FOUND)


@pytest.mark.parametrize(
    "path", ["../outside", "/etc", "", ".", "dir/..", "link", "loop", "loop/x", "x\0y", "a" * 4097, "missing/x"]
)
async def test_a_path_that_leads_outside_is_refused(tmp_path: Path, path: str) -> None:
    write_adapter(tmp_path / "outside", "x")
    (tmp_path / "dir" / "dir").mkdir(parents=True)
    (tmp_path / "dir" / "link").symlink_to(tmp_path / "outside")
    (tmp_path / "dir" / "loop").symlink_to(tmp_path / "dir" / "loop")
    with pytest.raises(Refused) as refusal:
        await control(tmp_path / "dir").load("a", path, replace=False)
    assert (refusal.value.status.code, refusal.value.status.field) == (Code.INVALID_ARGUMENT, "path")


async def test_nothing_is_loaded_without_a_folder(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="from below --lora-dir alone") as refusal:
        await control().load("a", write_adapter(tmp_path / "x", "x"), replace=False)
    assert refusal.value.status.code == Code.FAILED_PRECONDITION


async def test_calls_at_a_time_are_bounded(tmp_path: Path) -> None:
    go = threading.Event()

    def slow(path: str) -> AdapterFile:
        assert go.wait(10)
        return read_file(path)

    made = AdapterControl(AdapterRegistry("base"), slow, str(tmp_path))
    write_adapter(tmp_path / "x", "x")
    calls = [asyncio.create_task(made.load(f"a{number}", "x", replace=False)) for number in range(MAX_CALLS + 1)]
    await until(lambda: calls[-1].done())
    go.set()
    *loaded, refused = await asyncio.gather(*calls, return_exceptions=True)
    assert len(made.registry) == MAX_CALLS
    assert all(isinstance(each, tuple) for each in loaded)
    assert isinstance(refused, Refused)
    assert refused.status.code == Code.RESOURCE_EXHAUSTED
