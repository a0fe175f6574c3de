"""Processes of ranks, and of engines, that start at once: a process that has imported everything forks them.

What a rank runs, and how it is connected, is as ``LocalRank`` has it; only its imports are not made again each time.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import traceback
from contextlib import suppress
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from socket import AF_UNIX, SOCK_SEQPACKET, recv_fds, send_fds, socket, socketpair
from unittest import mock

from engine_core.distributed.ranks import Rank
from engine_core.executor.ranks.connection import RankConnections
from engine_core.executor.ranks.process import RankProcess

LOCAL_RANK = "engine_core.executor.ranks.local.LocalRank"
"""What a ``ForkedRank`` replaces."""


@cache
def forking_process() -> socket:
    """A line to it. It ends with this process."""
    ours, theirs = socketpair(AF_UNIX, SOCK_SEQPACKET)
    root = str(Path(__file__).parents[4])
    run = f"import sys; sys.path.insert(0, {root!r}); from {__name__} import main; main()"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}  # with more, libraries begin threads, which a fork loses
    with theirs:
        subprocess.Popen(
            [sys.executable, "-P", "-c", run, str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            env=environment,
        )
    return ours


class ForkedRank(RankProcess):
    """In the place of a ``LocalRank``."""

    def __init__(self, rank: Rank) -> None:
        self.rank = rank
        ours, theirs = zip(socketpair(), socketpair(), strict=True)
        reading, self._life = os.pipe()
        forking = forking_process()
        send_fds(forking, [b"{}"], [*(each.fileno() for each in theirs), reading])
        for each in theirs:
            each.close()
        os.close(reading)
        self.pid = int(forking.recv(64))
        self.ended: int | None = os.pidfd_open(self.pid)
        self.connections = RankConnections(*(Connection(each.detach()) for each in ours))

    def ending(self, seconds: float) -> str | None:
        return f"(pid {self.pid}) ended" if self.wait(seconds) else None

    def wants_to_run(self) -> bool:
        return True  # other tests may take all processors: silence alone is no failure for long

    def kill(self) -> None:
        if self.ended is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.ended, signal.SIGKILL)

    def wait(self, seconds: float) -> bool:
        return self.ended is None or bool(select.select([self.ended], [], [], seconds)[0])

    def close(self) -> None:
        super().close()
        if self.ended is not None:
            os.close(self.ended)
            os.close(self._life)
            self.ended = None


class ForkedEngine:
    """An engine of two ranks in a process of its own, which computes until it ends; its ranks are forked, too."""

    def __init__(self, checkpoint: Path, sizes: str) -> None:
        forking = forking_process()
        line, other = socketpair(AF_UNIX, SOCK_SEQPACKET)  # on which it asks for its ranks
        reading, writing = os.pipe()
        asked = json.dumps({"checkpoint": str(checkpoint), "sizes": sizes})
        send_fds(forking, [asked.encode()], [line.fileno(), other.fileno(), writing])
        self.pid = int(forking.recv(64))
        for each in (line, other):
            each.close()
        os.close(writing)
        self._told = reading

    def ranks(self) -> list[int]:
        """Those of its ranks, once it computes."""
        told = os.read(self._told, 1024)
        return [int(pid) for pid in told.split()]

    def close(self) -> None:
        os.close(self._told)


def run_engine(checkpoint: str, sizes: str, line: socket, told: int) -> None:
    from engine_core.llm import LLM, SamplingParams

    params = SamplingParams(temperature=0.0, max_tokens=1000, ignore_eos=True)
    options = {"dtype": "float32", "kv_cache_memory_bytes": 16 << 20, "num_threads": 1, sizes: 2}
    with (
        mock.patch(f"{__name__}.forking_process", return_value=line),
        mock.patch(LOCAL_RANK, ForkedRank),
        LLM(checkpoint, **options) as llm,  # type: ignore[arg-type]
    ):
        llm.generate([[5, 6, 7]], SamplingParams(max_tokens=2))
        os.write(told, " ".join(str(rank.pid) for rank in llm._engine.executor.ranks).encode())
        while True:
            llm.generate([[5, 6, 7]], params)


def main() -> None:
    """Fork a process for each message, until the other end of the first line is closed."""

    first = socket(fileno=int(sys.argv[1]))
    lines = [first]
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the system lets nothing remain of those that have ended
    while True:
        for line in select.select(lines, [], [])[0]:
            message, descriptors, _, _ = recv_fds(line, 4096, 3)
            if not message and line is first:
                return
            if not message:  # an engine has ended
                lines.remove(line)
                line.close()
                continue
            asked = json.loads(message)
            if "checkpoint" in asked:
                lines.append(socket(fileno=descriptors.pop(1)))
            pid = os.fork()
            if pid == 0:
                _run(lines, asked, descriptors)
            for descriptor in descriptors:
                os.close(descriptor)
            line.send(str(pid).encode())


def _run(lines: list[socket], asked: dict[str, str], descriptors: list[int]) -> None:
    """In the process that was forked."""
    try:
        for line in lines:
            line.close()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        if "checkpoint" in asked:
            run_engine(**asked, line=socket(fileno=descriptors[0]), told=descriptors[1])
        from engine_core.executor.ranks import local_main

        sys.argv[1:] = list(map(str, descriptors))
        local_main.main()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)
