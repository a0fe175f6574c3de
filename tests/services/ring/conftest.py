"""What tests of the ring's state machines share."""

import pytest

from services.ring.ledgers import Ledgers
from services.ring.switchboard import Switchboard
from tests.services.ring.door import GRACE, MAX_LEDGERS, Core


@pytest.fixture
def board() -> Switchboard:
    """The engine's door, before anybody attached."""
    return Switchboard(Core(), Ledgers(orphan_grace=GRACE, max_entries=MAX_LEDGERS))
