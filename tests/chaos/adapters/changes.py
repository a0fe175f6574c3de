"""Adapters that are loaded, replaced and unloaded while requests ask for them: by calls, and in the engines' folder."""

from __future__ import annotations

import asyncio
import random
import shutil
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from ringline import AsyncClient, NotFound, Unavailable

from tests.chaos.adapters.names import BASE, NAMES, STORE, Change, Name
from tests.chaos.adapters.sightings import Sightings

PAUSE = 0.8
"""Mean seconds between two changes."""
REPEAT = 1.0
"""Seconds between two calls for a name: an engine that was started anew, or missed a call, lacks what calls loaded."""
_CALL = 10.0
"""Seconds for a call: it waits for engines that hang."""
_SHARE_AWAY = 0.4
"""Of the changes of a name that may be without an adapter."""
_LEAVES_AFTER = 6
"""Changes before the adapter leaves that never comes back."""
_SETTLED = 30.0
"""Seconds in which all engines have what they should have."""


class Operator:
    """Changes adapters. What each name should stand for is in ``wanted``, by contents."""

    def __init__(self, client: AsyncClient, folder: Path, sightings: Sightings, seed: int) -> None:
        self._client = client
        self._folder = folder
        self._sightings = sightings
        self._random = random.Random(seed)
        self.wanted: dict[str, str | None] = {
            each.name: None if each.change in (Change.CALLS, Change.MISSING) else each.contents[0]
            for each in NAMES.values()
        }
        self._called: dict[str, str | None] = {}
        """What calls have made of the names, and all engines have confirmed."""
        self._changes = 0
        self.done: Counter[str] = Counter()
        """Loads, unloads and replacements."""

    @asynccontextmanager
    async def at_work(self) -> AsyncIterator[None]:
        called = [each for each in NAMES.values() if each.change is Change.CALLS]
        tasks = [asyncio.create_task(self._work()), *(asyncio.create_task(self._keep(each)) for each in called)]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
        for error in ended:
            if isinstance(error, Exception):
                raise error

    async def settle(self, digests: Mapping[str, str]) -> list[str]:
        """Problems of engines that do not come to have what they should have, when nothing goes wrong any more."""
        for each in NAMES.values():
            if each.change is Change.CALLS:
                await self._call(each)
        expected = {name: digests[contents] for name, contents in self.wanted.items() if contents is not None}
        end = time.monotonic() + _SETTLED
        while (now := self._sightings.now()) and time.monotonic() < end:
            if all(each == expected for each in now.values()):
                return []
            await asyncio.sleep(0.5)
        return [f"{engine} has {has} instead of {expected}" for engine, has in now.items() if has != expected]

    async def _work(self) -> None:
        changing = [each for each in NAMES.values() if each.change not in (Change.NEVER, Change.MISSING)]
        while True:
            await asyncio.sleep(self._random.uniform(0, 2 * PAUSE))
            self._changes += 1
            self._change(self._random.choice(changing))

    def _change(self, name: Name) -> None:
        now, path = self.wanted[name.name], self._folder / name.name
        others = [each for each in name.contents if each != now]
        match name.change:
            case Change.FILES:
                self.wanted[name.name] = other = self._random.choice(others)
                self._replace(self._folder / STORE / other, path)
                self.done["replaced in the folder"] += 1
            case Change.FOLDER if now is None or self._random.random() < 1 - _SHARE_AWAY:
                self.wanted[name.name] = other = self._random.choice(others)
                self._put(self._folder / STORE / other, path)
                self.done["put into the folder" if now is None else "replaced in the folder"] += 1
            case Change.REMOVED if now is None or self._changes < _LEAVES_AFTER:
                pass
            case Change.FOLDER | Change.REMOVED:
                self.wanted[name.name] = None
                self._remove(path)
                self.done["removed from the folder"] += 1
            case Change.CALLS:
                away = now is not None and self._random.random() < _SHARE_AWAY
                self.wanted[name.name] = None if away else self._random.choice(others)

    def _replace(self, new: Path, path: Path) -> None:
        """File by file, or the folder as a whole."""
        if self._random.random() < 0.5:
            self._put(new, path)
            return
        for file in new.iterdir():
            beside = self._folder / STORE / f"new {file.name}"
            shutil.copy(file, beside)
            beside.replace(path / file.name)

    def _put(self, new: Path, path: Path) -> None:
        beside = self._folder / STORE / "new"
        shutil.copytree(new, beside)
        self._remove(path)
        beside.rename(path)

    def _remove(self, path: Path) -> None:
        if path.exists():
            old = self._folder / STORE / "old"
            path.rename(old)
            shutil.rmtree(old)

    async def _keep(self, name: Name) -> None:
        """Let calls bring about what a name should stand for, again and again."""
        while True:
            await self._call(name)
            await asyncio.sleep(REPEAT * self._random.uniform(0.5, 1.5))

    async def _call(self, name: Name) -> None:
        contents, before = self.wanted[name.name], self._called.get(name.name)
        try:
            async with asyncio.timeout(_CALL):
                if contents is None:
                    await self._client.unload_adapter(name.name, model=BASE)
                else:
                    await self._client.load_adapter(name.name, f"{STORE}/{contents}", model=BASE, replace=True)
        except NotFound:
            if contents is not None:
                raise
        except (Unavailable, TimeoutError):
            return  # an engine hangs, or was lost
        if contents != before:
            self.done["unloaded" if contents is None else "loaded" if before is None else "replaced by a call"] += 1
            self._called[name.name] = contents
