"""The gateway process: connect to processors, serve HTTP, drain."""

from __future__ import annotations

import structlog
import uvicorn

from services.common.config.settings import GatewaySettings
from services.common.process.run import die_with_parent, forbid_imports, run_service
from services.common.telemetry.logs import configure_logs, warn_of_unknown_variables
from services.gateway.app import application
from services.gateway.callers import Callers
from services.gateway.endpoints import ENDPOINTS
from services.gateway.processors import client_of

log = structlog.get_logger(__name__)


def run(settings: GatewaySettings) -> int:
    """Run the process; returns its exit code."""
    die_with_parent()
    forbid_imports()
    configure_logs(settings.telemetry, "gateway")
    warn_of_unknown_variables()

    async def main() -> int:
        server = settings.server
        async with client_of(settings) as client:
            callers = Callers(client, settings.tenant_header)
            app = application(ENDPOINTS, callers, server.max_message_bytes)
            config = uvicorn.Config(
                app,
                host=server.host,
                port=server.port,
                http="httptools",
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
            )
            log.info("serving", address=server.address)
            await uvicorn.Server(config).serve()
        return 0

    return run_service(main)
