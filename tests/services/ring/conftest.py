"""What tests of the ring's state machines share."""

import pytest

from services.ring.attach_registry import AttachRegistry
from services.ring.ledger import Ledgers
from tests.services.ring.attach_harness import GRACE, MAX_LEDGERS, RecordingCore


@pytest.fixture
def registry() -> AttachRegistry:
    return AttachRegistry(RecordingCore(), Ledgers(orphan_grace=GRACE, max_entries=MAX_LEDGERS))
