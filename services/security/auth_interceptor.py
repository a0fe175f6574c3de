"""The auth interceptor: asked once for each RPC, before a message of it is taken. Health is open to all, for probes."""

from __future__ import annotations

import hmac
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import aclosing
from typing import Any

import grpc
import grpc.aio
import structlog
from grpc_health.v1 import health

from services.ring.errors import Code, Refused
from services.ring.roles import Identities, Role, principal
from services.rpc.handlers import read_single_request
from services.security.file_reload import ReloadedFile
from services.security.tokens import AUTHORIZATION, bearer_token
from services.telemetry.logs import RateLimitedLog

log = structlog.get_logger(__name__)

Context = grpc.aio.ServicerContext[Any, Any]

_OPEN = f"/{health.SERVICE_NAME}/"
_NAMES = "x509_subject_alternative_name"
"""Where gRPC puts the names in a caller's certificate."""
_OPERATOR = frozenset({Role.OPERATOR})


class AuthInterceptor(grpc.aio.ServerInterceptor):
    """Asks ``admit`` about every RPC. Comes after ``ErrorInterceptor``, which ends a call that is refused."""

    def __init__(self, admit: Callable[[Context, str], None]) -> None:
        """``admit`` gets the method, too. It raises ``Refused``; its text says why, and nothing of what was shown."""
        self._admit = admit
        self._denials = RateLimitedLog(log, "denied")

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        handler = await continuation(handler_call_details)
        method = str(handler_call_details.method)
        return handler if handler is None or method.startswith(_OPEN) else self._gated(handler, method)

    def _gated(self, handler: grpc.RpcMethodHandler[Any, Any], method: str) -> grpc.RpcMethodHandler[Any, Any]:
        kind = ("stream" if handler.request_streaming else "unary", "stream" if handler.response_streaming else "unary")
        behavior = getattr(handler, "_".join(kind))

        async def given(requests: Any, context: Context) -> Any:
            return requests if handler.request_streaming else await read_single_request(context)

        async def answer(requests: Any, context: Context) -> Any:
            self._check(context, method)
            return await behavior(await given(requests, context), context)

        async def answers(requests: Any, context: Context) -> AsyncIterator[Any]:
            self._check(context, method)
            async with aclosing(behavior(await given(requests, context), context)) as responses:
                async for response in responses:
                    yield response

        gated = answers if inspect.isasyncgenfunction(behavior) else answer
        # gRPC takes a single request before it asks a handler, and a stream's when the handler wants it.
        make = getattr(grpc, f"stream_{kind[1]}_rpc_method_handler")
        return make(gated, handler.request_deserializer, handler.response_serializer)  # type: ignore[no-any-return]

    def _check(self, context: Context, method: str) -> None:
        try:
            self._admit(context, method)
        except Refused as refused:
            code = refused.status.code.name
            self._denials.write(method=method, peer=context.peer(), code=code, reason=str(refused))
            raise


class ServiceAuthorizer:
    """Lets in services alone: what is asked for, certificate or token or both, each must be shown."""

    def __init__(
        self,
        identities: Identities | None,
        tokens: ReloadedFile[tuple[str, ...]] | None,
        roles: Mapping[str, Collection[Role]],
    ) -> None:
        """``identities``: None where no certificate is asked for. ``roles``: who may call each method.

        An operator may call the others.
        """
        self._identities = identities
        self._tokens = tokens
        self._roles = roles

    def admit(self, context: Context, method: str) -> None:
        """Raise ``Refused`` unless a service calls that may, and let it be known which."""
        if self._identities is not None:
            names = (name.decode("utf-8", "replace") for name in context.auth_context().get(_NAMES, ()))
            caller = self._identities.principal(names)
            caller.check_role(method, self._roles.get(method, _OPERATOR))
            principal.set(caller)
        if self._tokens is not None:
            self._check_token(context, self._tokens.value)

    def _check_token(self, context: Context, known: Sequence[str]) -> None:
        try:
            shown = bearer_token(context.invocation_metadata() or ())
        except ValueError as error:
            raise Refused(Code.UNAUTHENTICATED, f"{AUTHORIZATION}: {error}") from None
        if shown is None:
            raise Refused(Code.UNAUTHENTICATED, f"{AUTHORIZATION}: missing: expected the services' token")
        # Every one is compared, in a time that says nothing of how much of which was right.
        matches = [hmac.compare_digest(shown.encode(), token.encode()) for token in known]
        if True not in matches:
            raise Refused(Code.UNAUTHENTICATED, f"{AUTHORIZATION}: the token is not that of the services")
