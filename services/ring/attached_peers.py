"""The list of attached peers as a link sends it: a snapshot first, then numbered changes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from services.ring.identity import PeerId


@dataclass(frozen=True, slots=True)
class PeerChange:
    """How a list of peers changed; the content of ``ringline.types.v1.PeerChanges``."""

    revision: int
    """Grows by one with each change on a link, from 1."""
    reset: bool
    """Whether ``added`` is the whole list."""
    added: tuple[PeerId, ...]
    removed: tuple[PeerId, ...]


class PeerListSender:
    """Changes that one receiver has not been sent; holds at most the peers that changed since the last ``take``."""

    def __init__(self, peers: Iterable[PeerId]) -> None:
        """``peers``: the peers attached now; ``take`` returns them as the first change."""
        self._pending: dict[PeerId, bool] = dict.fromkeys(peers, True)
        self._revision = 0

    @property
    def pending(self) -> bool:
        """Whether ``take`` would return a change. The first one is sent even if the list is empty."""
        return bool(self._pending) or self._revision == 0

    def add(self, peer: PeerId) -> None:
        self._pending[peer] = True

    def remove(self, peer: PeerId) -> None:
        if self._revision == 0:
            self._pending.pop(peer, None)
        else:
            self._pending[peer] = False

    def clear(self) -> None:
        """The receiver is gone: send nothing more."""
        self._pending.clear()
        self._revision = max(self._revision, 1)

    def take(self) -> PeerChange | None:
        """Everything that changed since the last call; None if nothing did."""
        if not self.pending:
            return None
        pending, self._pending = self._pending, {}
        self._revision += 1
        return PeerChange(
            self._revision,
            reset=self._revision == 1,
            added=tuple(peer for peer, there in pending.items() if there),
            removed=tuple(peer for peer, there in pending.items() if not there),
        )


class PeerList:
    """The list as received from one sender."""

    def __init__(self) -> None:
        self.peers: frozenset[PeerId] = frozenset()
        self._revision = 0

    def apply(self, change: PeerChange) -> frozenset[PeerId]:
        """Apply a change and return the list; raises ``ValueError`` if a change before it was lost."""
        if change.reset:
            self.peers = frozenset(change.added)
        elif change.revision == self._revision + 1:
            self.peers = (self.peers - frozenset(change.removed)) | frozenset(change.added)
        else:
            raise ValueError(f"change {change.revision} of the list of peers follows change {self._revision}")
        self._revision = change.revision
        return self.peers
