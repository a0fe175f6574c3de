"""A service that does nothing but live as every service does. Run as ``small_service.py UDS_OR_PORT [DRAIN_SECONDS]``.

On SIGUSR1 it is asked to stop with exit code 7; on SIGUSR2 its work raises; on SIGHUP it has nothing left to drain.
"""

import asyncio
import contextlib
import signal
import sys

import structlog

from services.common.config.settings import DetokenizerSettings, ServerSettings, TelemetrySettings
from services.common.process.run import die_with_parent, forbid_imports, run_service
from services.common.rpc.server import Server
from services.common.telemetry.logs import configure_logs

log = structlog.get_logger()


async def main(place, drain_seconds):
    server_settings = ServerSettings(uds=place) if place.startswith("/") else ServerSettings(port=int(place))
    server = Server(server_settings, ["small.Service"])
    broken, drained = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR1, server.drain.begin, 7)
    loop.add_signal_handler(signal.SIGUSR2, broken.set)
    loop.add_signal_handler(signal.SIGHUP, drained.set)

    async def work():
        await server.set_serving(True)
        log.info("serving", address=server.address)
        await broken.wait()
        raise RuntimeError("it broke")

    async def drain(grace):
        log.info("drain begins", grace=grace)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(drained.wait(), min(drain_seconds, grace))
        log.info("drain ends")

    return await server.run(work, drain)


if __name__ == "__main__":
    die_with_parent()
    forbid_imports()
    configure_logs(TelemetrySettings(log_format="json"), DetokenizerSettings.service)
    drain_seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 0.0
    sys.exit(run_service(lambda: main(sys.argv[1], drain_seconds)))
