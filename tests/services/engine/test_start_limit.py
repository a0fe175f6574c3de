"""A start that makes no progress ends the process."""

import subprocess
import sys

from tests.ring import ROOT

STALLED = """
import time
from engine_core.progress import StartupProgress
from services.common.telemetry.logs import report_fatal
from services.engine.start_limit import StageClock, start_limit
clock = StageClock()
progress = StartupProgress(clock)
with start_limit(clock, 1.0, report_fatal):
    with progress.stage("load weights") as stage:
        for done in range(6):
            progress.advance(stage, done, 6)
        print("steps", clock.steps, flush=True)
    with progress.stage("profile"):
        time.sleep(60)  # until it is ended
"""


def test_the_stage_that_makes_no_progress_is_named():
    ended = subprocess.run([sys.executable, "-c", STALLED], cwd=ROOT, capture_output=True, text=True, timeout=50)
    assert (ended.returncode, ended.stdout) == (1, "steps 7\n")
    assert ended.stderr == (
        "error: the stage 'profile' of the start made no progress within --worker-start-timeout=1 s\n"
    )
