"""Adapters of ``LLM``: what requests name, and which of them may begin."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Protocol

from engine_core.errors import AdapterError, ConfigError, ExecutorError, InvalidRequestError
from engine_core.executor.base import Executor
from engine_core.lora.adapter import AdapterFile, open_adapter
from engine_core.lora.files import WEIGHTS
from engine_core.lora.peft_config import CONFIG
from engine_core.lora.request import RequestAdapter
from engine_core.lora.schedule import Action, AdapterSchedule, Admit, Load, Refuse
from engine_core.lora.support import LoRASupport

_MOST_KNOWN = 4096


@dataclass(frozen=True, slots=True)
class LoRARequest:
    """An adapter by its directory (vLLM's class). What counts is its contents: names and numbers are for people."""

    lora_name: str
    lora_int_id: int
    """≥ 1"""
    lora_path: str | PathLike[str] = field(default="")
    base_model_name: str | None = None
    load_inplace: bool = False
    """Without effect, for the files that are there when a call begins are what counts."""

    def __post_init__(self) -> None:
        if not isinstance(self.lora_name, str) or not self.lora_name:
            raise ConfigError("lora_name", self.lora_name, "a name")
        if not isinstance(self.lora_int_id, int) or self.lora_int_id < 1:
            raise ConfigError("lora_int_id", self.lora_int_id, "an integer of at least 1")
        if not isinstance(self.lora_path, str | PathLike) or not fspath(self.lora_path):
            raise ConfigError("lora_path", self.lora_path, "the directory of an adapter in PEFT's format")

    @property
    def name(self) -> str:
        """``lora_name``."""
        return self.lora_name

    @property
    def adapter_id(self) -> int:
        """``lora_int_id``."""
        return self.lora_int_id

    @property
    def path(self) -> str:
        """``lora_path`` as text."""
        return fspath(self.lora_path)


@dataclass(frozen=True, slots=True)
class OpenAdapter:
    """An adapter that was checked."""

    path: str
    file: AdapterFile


class OpenAdapters:
    """Opens adapters for calls, and remembers those whose files have not changed."""

    def __init__(self, lora: LoRASupport | None) -> None:
        self._lora = lora
        self._known: OrderedDict[str, tuple[object, OpenAdapter]] = OrderedDict()
        """By path, with the state of its files, the least recently used first."""

    def of(self, requests: object, count: int) -> list[OpenAdapter | None]:
        """The adapters of ``count`` prompts: ``requests`` is one for all, a list of one or None for each, or None.

        Raises ``AdapterError``, ``InvalidRequestError``, ``TypeError``, ``ValueError``.
        """
        if requests is None or isinstance(requests, LoRARequest):
            requests = [requests] * count
        if not isinstance(requests, Sequence) or not all(isinstance(each, LoRARequest | None) for each in requests):
            problem = f"lora_request is of type {type(requests).__name__}"
            raise TypeError(f"{problem}; expected LoRARequest, or a list of them")
        if len(requests) != count:
            raise ValueError(f"the number of lora_request is {len(requests)}, that of prompts is {count}")
        opened = {path: self._open(path) for path in dict.fromkeys(each.path for each in requests if each is not None)}
        return [None if each is None else opened[each.path] for each in requests]

    def _open(self, path: str) -> OpenAdapter:
        if self._lora is None:
            raise InvalidRequestError("lora_request", "this engine has no adapters; expected LLM(…, enable_lora=True)")
        state, known = _state(path), self._known.get(path)
        if known is not None and known[0] == state:
            self._known.move_to_end(path)
            return known[1]
        adapter = OpenAdapter(path, open_adapter(Path(path), self._lora.targets, self._lora.limits))
        self._known[path] = state, adapter
        while len(self._known) > _MOST_KNOWN:
            self._known.popitem(last=False)
        return adapter


def _state(path: str) -> object:
    """Another one once the adapter's files are others."""
    try:
        found = [(Path(path) / name).stat() for name in (CONFIG, WEIGHTS)]
    except OSError:
        return object()
    return [(each.st_ino, each.st_size, each.st_mtime_ns, each.st_ctime_ns) for each in found]


class Live(Protocol):
    """A request in progress."""

    request: Any
    """A ``Request`` or ``PoolingRequest``."""
    adapter: OpenAdapter | None
    queued_ts: float


class Adapters:
    """Loads adapters when requests need them, in the thread that computes. Each method returns who may begin."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        lora = executor.lora
        self._schedule = None if lora is None else AdapterSchedule(lora.max_loras, lora.max_loaded, lora.max_bytes)
        self._live: dict[str, Live] = {}
        """Requests that need an adapter, until their ends."""

    def add(self, one: Live) -> list[Live]:
        """A request. Raises ``AdapterError``, ``ExecutorError``."""
        if one.adapter is None or self._schedule is None:
            return [one]
        request_id, file = one.request.request_id, one.adapter.file
        self._live[request_id] = one
        return self._take(self._schedule, self._schedule.add(request_id, "", file.digest, file.nbytes))

    def end(self, request_id: str) -> list[Live]:
        """A request has ended, or will not begin. Raises as ``add`` does."""
        if self._live.pop(request_id, None) is None or self._schedule is None:
            return []
        return self._take(self._schedule, self._schedule.end(request_id))

    def forget(self, request_ids: Iterable[str]) -> None:
        """These requests are over, and there are no others."""
        if self._schedule is None:
            return
        # Those that wait go first: then no end lets another one begin.
        for request_id in sorted(request_ids, key=self._schedule.waits, reverse=True):
            if self._live.pop(request_id, None) is not None:
                self._schedule.end(request_id)

    def _take(self, schedule: AdapterSchedule, actions: list[Action]) -> list[Live]:
        admitted: list[Live] = []
        left = deque(actions)
        try:
            while left:
                action = left.popleft()
                if isinstance(action, Load):
                    self._load(schedule, action)
                    left.extendleft(reversed(schedule.loaded(action.adapter_id)))
                else:
                    admitted.append(self._admitted(action))
        except BaseException:
            self._abandon(schedule, left)
            raise
        return admitted

    def _admitted(self, action: Admit | Refuse) -> Live:
        one = self._live[action.request_id]
        assert one.adapter is not None
        if not isinstance(action, Admit):
            raise AdapterError(f"{one.adapter.path} cannot be loaded")
        one.request = replace(one.request, adapter=RequestAdapter(action.adapter_id, one.adapter.file.digest))
        return one

    def _abandon(self, schedule: AdapterSchedule, actions: deque[Action]) -> None:
        """Load none of what the schedule lets be loaded: its requests are about to be forgotten."""
        while actions:
            if isinstance(action := actions.popleft(), Load):
                for adapter_id in action.evicted:
                    with suppress(ExecutorError):  # the reason is raised already
                        self._executor.unload_adapter(adapter_id)
                actions += schedule.failed(action.adapter_id)

    def _load(self, schedule: AdapterSchedule, action: Load) -> None:
        for adapter_id in action.evicted:
            self._executor.unload_adapter(adapter_id)
        adapters = [each.adapter for each in self._live.values() if each.adapter is not None]
        path = next(each.path for each in adapters if each.file.digest == action.digest)
        try:
            self._executor.load_adapter(action.adapter_id, path, action.digest)
        except BaseException:
            self._abandon(schedule, deque(schedule.failed(action.adapter_id)))
            raise
