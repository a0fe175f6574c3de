"""How adapters become known: those of the start, those of the watched folder, and LoadAdapter.

Files are read and checked in threads, a few at a time; what comes of it is entered in the registry on the event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import structlog

from engine_core.errors import AdapterError, ConfigError
from services.common.process.run import DaemonThreadPool
from services.engine.adapters.folder import AdapterFolder, FolderChanges
from services.engine.adapters.modules import FOLDER, LoRAModule
from services.engine.adapters.registry import AdapterRegistry, Generation
from services.engine.adapters.retries import Retries, is_missing, may_pass
from services.ring.errors import Code, Reason, Refused, invalid_field
from services.ring.identity import check_adapter_name
from services.ring.limits import MAX_ADAPTER_PATH_BYTES, MAX_ADAPTERS

if TYPE_CHECKING:
    from engine_core.lora.adapter import AdapterFile  # it imports torch

log = structlog.get_logger(__name__)

THREADS = 2
"""Adapters that are read at a time."""
MAX_CALLS = 64
"""Calls of LoadAdapter at a time."""
POLL_SECONDS = 1.0
"""Between two scans of the folder."""
SUSPECT_SECONDS = 30.0
"""After which an adapter that cannot be read is read again."""
_T = TypeVar("_T")
_POLL_SHARE, _MOST_SECONDS = 50, 30.0
"""Scans take at most one part in 50 of the time; but the next one comes after 30 s at the latest."""


class AdapterControl:
    """The adapters of an engine. Use it on the event loop."""

    def __init__(
        self, registry: AdapterRegistry, open_adapter: Callable[[str], AdapterFile], lora_dir: str | None
    ) -> None:
        """``open_adapter`` reads and checks the adapter in a folder; it blocks, and raises ``AdapterError``."""
        self.registry = registry
        self._open = open_adapter
        self._lora_dir = lora_dir
        self._folder = None if lora_dir is None else AdapterFolder(Path(lora_dir).resolve())
        self._pool = DaemonThreadPool(THREADS, "adapter files")
        self._calls = 0
        self._suspects: dict[Generation, float] = {}
        """Adapters that could not be loaded, and were not found sound since: when to read each again, by the monotonic
        clock."""
        self._unread_folders = Retries[str]()
        """Names of folders that could not be read."""
        self._without_room: dict[str, None] = {}
        """Names of folders whose adapters are sound, but whose names stand for others, or are too many."""

    def close(self) -> None:
        """Read nothing more; a thread may still be at work."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    # From the start

    async def begin(self, modules: list[LoRAModule], model: str, *others: str) -> None:
        """Enter the adapters of ``--lora-modules``, which may call the model ``others``.

        Raises ``ConfigError`` or ``AdapterError``.
        """
        if self._folder is not None and not await self._in_thread(self._folder.exists):
            raise ConfigError("lora_dir", self._lora_dir, FOLDER)
        for module in modules:
            if module.base_model_name not in (None, model, *others):
                problem = f"{module.name} to be made for {model}, and it says {module.base_model_name}"
                raise ConfigError("lora_modules", module.name, problem)
            try:
                self._enter(module.name, await self._read(module.path), module.path)
            except Refused as refused:
                raise ConfigError("lora_modules", module.name, refused.status.message) from None
            except AdapterError as error:
                raise AdapterError(f"--lora-modules {module.name}: {error}") from None
        if self._folder is None:
            self._complete()

    def _complete(self) -> None:
        if not self.registry.is_complete:
            self.registry.complete()
            log.info("adapters known", adapters=len(self.registry))

    async def watch(self) -> None:
        """Enter what is in the folder, and what changes there, and read suspects again, until cancelled."""
        while True:
            start = time.monotonic()
            changes = FolderChanges([], []) if self._folder is None else await self._in_thread(self._folder.scan)
            seconds = time.monotonic() - start
            for name in changes.removed:
                self._leave(name)
            for name in changes.changed:
                await self._enter_from_folder(name)
            for name, waited in self._unread_folders.due().items():
                await self._enter_from_folder(name, waited)
            for name in list(self._without_room):
                if self.registry.find(name) is None and len(self.registry) < MAX_ADAPTERS:
                    await self._enter_from_folder(name)
            self._complete()
            await asyncio.sleep(max(POLL_SECONDS, min(_POLL_SHARE * seconds, _MOST_SECONDS)))
            for generation in [each for each, due in self._suspects.items() if due <= start]:
                await self._examine(generation)

    def suspect(self, generation: Generation) -> None:
        """An adapter could not be loaded: its files may have changed."""
        self._suspects[generation] = time.monotonic()

    async def _examine(self, generation: Generation) -> None:
        """Read a suspect again; if it is as it was, peers are told so, who believe that it is not known here."""
        del self._suspects[generation]
        if self.registry.get(*generation.key) is not generation:
            return
        if await self._is_sound(generation):
            self.registry.tell_again(generation)
        elif generation.is_current:
            self._suspects[generation] = time.monotonic() + SUSPECT_SECONDS

    async def _is_sound(self, generation: Generation) -> bool:
        """Whether the files of an adapter are as they were."""
        try:
            return (await self._read(generation.path)).digest == generation.file.digest
        except AdapterError as error:
            log.warning("an adapter cannot be used", adapter=generation.name, path=generation.path, reason=str(error))
            return False

    async def _enter_from_folder(self, name: str, waited: float = 0.0) -> None:
        """``waited``: how long it has, after it could not be read."""
        assert self._folder is not None
        path = self._folder.path_of(name)
        self._forget_failures(name)
        try:
            file = await self._read(path)
            now = self.registry.find(name)
            if now is not None and now.path != path:
                if now.file.digest != file.digest:
                    self._without_room[name] = None
                    raise AdapterError(
                        f"the name stands for the adapter of {now.path}: unload it, or rename the folder"
                    )
                if await self._is_sound(now):
                    return
            self._enter(name, file, path)
        except (AdapterError, Refused) as error:
            if isinstance(error, Refused) and error.status.code is Code.RESOURCE_EXHAUSTED:
                self._without_room[name] = None
            if may_pass(error) and not is_missing(error):  # a file that comes is a change
                self._unread_folders.add(name, waited)
            present = "known as it was" if self.registry.find(name) is not None else "not known"
            reason = error.status.message if isinstance(error, Refused) else str(error)
            log.warning("an adapter cannot be used", adapter=name, path=path, reason=reason, now=present)

    def _forget_failures(self, name: str) -> None:
        self._unread_folders.forget(name)
        self._without_room.pop(name, None)

    def _leave(self, name: str) -> None:
        """A name left the folder; one that stands for an adapter of elsewhere stays."""
        assert self._folder is not None
        self._forget_failures(name)
        generation = self.registry.find(name)
        if generation is not None and generation.path == self._folder.path_of(name):
            self.registry.remove(name)
            log.info("adapter removed", adapter=name, digest=generation.file.digest, users=len(generation.users))

    # Calls

    async def load(self, name: str, path: str, *, replace: bool) -> tuple[Generation, Generation | None]:
        """Make an adapter known; returns it and the one that it replaces. Raises ``Refused``."""
        self.registry.check(name)
        if self._calls >= MAX_CALLS:
            message = f"limit of {MAX_CALLS} adapters being read reached; retry later"
            raise Refused(Code.RESOURCE_EXHAUSTED, message, retry_after_ms=1000)
        self._calls += 1
        try:
            folder = await self._in_thread(lambda: self._allowed(path))
            file = await self._read(folder)
        except AdapterError as error:
            raise invalid_field("path", str(error)) from None
        finally:
            self._calls -= 1
        now = self.registry.find(name)
        if now is not None and now.file.digest != file.digest and not replace:
            message = (
                f"name: {name!r} stands for another adapter, of digest {now.file.digest[:16]}…: set replace, or choose "
                "another name"
            )
            raise Refused(Code.ALREADY_EXISTS, message, reason=Reason.ADAPTER_EXISTS, field="name")
        before = self._enter(name, file, folder)
        known = self.registry.find(name)
        assert known is not None
        return known, before

    def unload(self, name: str) -> Generation:
        """Forget a name. Raises ``Refused``."""
        check_adapter_name("name", name)
        if (generation := self.registry.remove(name)) is None:
            message = f"name: there is no adapter {name!r} here"
            raise Refused(Code.NOT_FOUND, message, reason=Reason.ADAPTER_NOT_FOUND, field="name")
        log.info("adapter unloaded", adapter=name, digest=generation.file.digest, users=len(generation.users))
        return generation

    def _allowed(self, path: str) -> str:
        """The real path of a folder that may be loaded. Raises ``Refused``. Runs in a thread."""
        if self._lora_dir is None:
            message = "path: adapters are loaded from below --lora-dir alone, which this engine was started without"
            raise Refused(Code.FAILED_PRECONDITION, message, reason=Reason.UNSUPPORTED, field="path")
        if not 0 < len(path.encode()) <= MAX_ADAPTER_PATH_BYTES or "\0" in path:
            raise invalid_field("path", f"{path[:80]!r}: expected a folder, of at most {MAX_ADAPTER_PATH_BYTES} bytes")
        root = Path(self._lora_dir).resolve()
        try:
            found = (root / path).resolve()
        except (OSError, RuntimeError):  # links that lead to each other
            raise invalid_field("path", f"{path[:200]!r} cannot be followed to a folder") from None
        if root not in found.parents:
            raise invalid_field("path", f"{path[:200]!r} is not below the engine's --lora-dir: put the folder there")
        return str(found)

    # Files

    async def _read(self, path: str) -> AdapterFile:
        """Raises ``AdapterError``, whatever is wrong."""

        def read() -> AdapterFile:
            try:
                return self._open(path)
            except AdapterError:
                raise
            except Exception as error:
                log.exception("an adapter cannot be read", path=path)
                raise AdapterError(f"{path} cannot be read: {type(error).__name__}") from error

        return await self._in_thread(read)

    async def _in_thread(self, work: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    def _enter(self, name: str, file: AdapterFile, path: str) -> Generation | None:
        now = self.registry.find(name)
        before = self.registry.put(name, file, path)
        if now is self.registry.find(name):
            return None
        told = {"adapter": name, "digest": file.digest, "path": path, "rank": file.rank, "bytes": file.nbytes}
        if before is not None:
            log.info("adapter replaced", **told, earlier=before.file.digest, users=len(before.users))
        else:
            (log.info if self.registry.is_complete else log.debug)("adapter known", **told)
        return before
