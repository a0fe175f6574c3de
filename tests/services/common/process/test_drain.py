"""Processes end as they are asked to: drained, at once, by themselves, or because they failed."""

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.programs import run

SMALL_SERVICE = Path(__file__).with_name("small_service.py")


class Process:
    """A running ``small_service.py`` that serves."""

    def __init__(self, place, drain_seconds=0.0):
        command = [sys.executable, SMALL_SERVICE, str(place), str(drain_seconds)]
        self.popen = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.records = []
        self.address = self.until("serving")["address"]

    def until(self, event):
        """Read its log until ``event``."""
        for line in self.popen.stderr:
            self.records.append(json.loads(line))
            if self.records[-1]["event"] == event:
                return self.records[-1]
        raise AssertionError(f"no {event}: {self.records}")

    def end(self):
        """Wait for its end: the exit code, and the rest of its log."""
        _, rest = self.popen.communicate(timeout=250)
        return self.popen.returncode, rest


def test_a_process_whose_log_has_no_reader_can_be_stopped():
    process = Process("0", drain_seconds=30.0)
    process.popen.stderr.close()
    process.popen.send_signal(signal.SIGTERM)
    process.popen.wait(timeout=60)
    assert process.popen.returncode == 0


def test_a_signal_drains_with_health_saying_so_while_open_streams_go_on():
    process = Process("0", drain_seconds=30.0)
    with grpc.insecure_channel(process.address) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service="small.Service"))
        statuses = [next(watch).status]
        process.popen.send_signal(signal.SIGTERM)
        statuses.append(next(watch).status)
        process.popen.send_signal(signal.SIGHUP)
        assert statuses == [health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING]
        code, rest = process.end()
    assert code == 0
    events = [json.loads(line)["event"] for line in rest.splitlines()]  # nothing but records: no traceback
    assert events == ["draining", "drain begins", "drain ends"]


def test_a_second_signal_ends_at_once():
    process = Process("0", drain_seconds=30.0)
    process.popen.send_signal(signal.SIGINT)
    process.until("drain begins")
    process.popen.send_signal(signal.SIGINT)
    code, rest = process.end()
    assert code == 128 + signal.SIGINT
    assert "drain ends" not in rest


def test_a_service_can_end_itself_with_a_code():
    process = Process("0")
    process.popen.send_signal(signal.SIGUSR1)
    code, rest = process.end()
    assert code == 7
    assert "drain ends" in rest


def test_a_failure_during_a_drain_decides_the_code():
    process = Process("0", drain_seconds=30.0)
    process.popen.send_signal(signal.SIGTERM)
    process.until("drain begins")
    process.popen.send_signal(signal.SIGUSR1)
    process.popen.send_signal(signal.SIGHUP)
    code, rest = process.end()
    assert code == 7
    assert "drain ends" in rest


def test_work_that_fails_ends_the_process_with_its_traceback_in_the_log(tmp_path):
    process = Process(tmp_path / "s")
    process.popen.send_signal(signal.SIGUSR2)
    record = process.until("unexpected error")
    assert "RuntimeError: it broke" in record["exception"]
    assert process.end() == (1, "")
    assert not (tmp_path / "s").exists()


def test_a_port_in_use_ends_a_process_with_one_line_and_no_traceback():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = run(sys.executable, SMALL_SERVICE, str(port))
    (line,) = done.stderr.splitlines()
    assert (done.returncode, json.loads(line)["error"]) == (3, f"port {port} is in use: choose another with --port")
