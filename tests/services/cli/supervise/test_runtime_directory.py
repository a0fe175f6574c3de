"""Running stacks are found, and what dead ones left is removed."""

import fcntl
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from services.cli.supervise.runtime_directory import ProcessState, StackState, running_stacks, runtime_directory
from services.common.config.errors import FatalError
from tests.ring import ROOT

STATE = StackState(1, "tiny", 12.5, "127.0.0.1:50051", {"engine": ProcessState(2, "unix:/x/engine.sock", None)})

HOLDER = """
import sys
from services.cli.supervise.runtime_directory import *
with runtime_directory() as directory:
    directory.write(StackState(os.getpid(), "held", 1.0, "127.0.0.1:1", {}))
    print(directory.path, flush=True)
    sys.stdin.read()
"""


pytestmark = pytest.mark.usefixtures("private_runtime_directory")


def hold():
    process = subprocess.Popen(
        [sys.executable, "-c", "import os\n" + HOLDER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    return process, Path(process.stdout.readline().strip())


def test_a_stack_is_found_while_it_runs():
    assert running_stacks() == []
    with runtime_directory() as directory:
        assert running_stacks() == []  # it has not said anything yet
        directory.write(STATE)
        assert running_stacks() == [STATE]
        assert directory.path.stat().st_mode & 0o777 == 0o700
        assert directory.socket("engine") == str(directory.path / "engine.sock")
    assert not directory.path.exists()
    assert running_stacks() == []


def test_two_stacks_do_not_disturb_each_other_and_a_killed_one_is_removed():
    process, path = hold()
    with runtime_directory() as directory:
        directory.write(STATE)
        assert {state.model for state in running_stacks()} == {"held", "tiny"}
        process.kill()
        process.communicate()
        assert path.exists()
        assert running_stacks() == [STATE]
        assert not path.exists()


def test_one_that_was_taken_for_dead_before_it_was_locked_is_not_used(monkeypatch):
    lock, looked = fcntl.flock, []

    def look_first(file, operation):
        if not looked:
            looked.append(file)
            running_stacks()
        lock(file, operation)

    monkeypatch.setattr("fcntl.flock", look_first)
    with runtime_directory() as directory:
        directory.write(STATE)
        assert running_stacks() == [STATE]
    assert looked


def test_a_stack_of_an_earlier_release_is_found():
    with runtime_directory() as directory:
        directory.write(STATE)
        file = directory.path / "state.json"
        state = json.loads(file.read_text())
        del state["names"]
        file.write_text(json.dumps(state))
        assert running_stacks() == [STATE]


def test_starting_removes_what_a_killed_one_left():
    process, path = hold()
    process.kill()
    process.communicate()
    with runtime_directory():
        assert not path.exists()


def test_a_directory_that_others_can_enter_is_not_used(private_runtime_directory):
    (private_runtime_directory / "ringline").mkdir()
    (private_runtime_directory / "ringline").chmod(0o755)
    with pytest.raises(FatalError, match="not private"), runtime_directory():
        pass


def test_a_runtime_directory_that_does_not_exist_is_said(monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/no/such/directory")
    with pytest.raises(
        FatalError, match=r"cannot create a directory for sockets at /no/such/directory/ringline.*XDG_RUNTIME_DIR"
    ):
        runtime_directory().__enter__()
    assert running_stacks() == [], "to look is no reason to make it"


def refuse(*args, **kwargs):
    raise PermissionError(13, "Permission denied")


def test_a_place_that_cannot_be_written_to_is_said_in_words(monkeypatch):
    monkeypatch.setattr("tempfile.mkdtemp", refuse)
    with pytest.raises(
        FatalError, match=r"^cannot create a directory for sockets in .*: Permission denied; set XDG_RUNTIME_DIR"
    ):
        runtime_directory().__enter__()


def test_a_place_whose_name_leaves_no_room_for_sockets_is_refused(private_runtime_directory, monkeypatch):
    for length, fits in ((107, True), (108, False)):
        filler = length - len(f"{private_runtime_directory}//ringline/serve-xxxxxxxx/detokenizer-0.sock")
        place = private_runtime_directory / ("x" * filler)
        place.mkdir()
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(place))
        if fits:
            with runtime_directory() as directory:
                assert len(directory.socket("detokenizer-9")) == length
        else:
            with pytest.raises(FatalError, match="is too long: paths of sockets have at most 107 bytes"):
                runtime_directory().__enter__()


def test_a_stack_whose_directory_is_gone_goes_on():
    with runtime_directory() as directory:
        shutil.rmtree(directory.path)
        with capture_logs() as logs:
            directory.write(STATE)
    assert [(entry["event"], entry["log_level"]) for entry in logs] == [("state not written", "warning")]
