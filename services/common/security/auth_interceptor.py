"""The auth interceptor: authorizes each RPC before its first message is read. Health checks need no authorization."""

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

from services.common.rpc.handlers import read_single_request
from services.common.security.file_reload import ReloadedFile
from services.common.security.tokens import AUTHORIZATION, bearer_token
from services.common.telemetry.logs import RateLimitedLog
from services.ring.errors import Code, Refused
from services.ring.roles import Identities, Role, principal

log = structlog.get_logger(__name__)

Context = grpc.aio.ServicerContext[Any, Any]

_OPEN_TO_ALL = f"/{health.SERVICE_NAME}/"
_CERTIFICATE_NAMES = "x509_subject_alternative_name"
"""gRPC's key for the names of a caller's certificate."""
_OPERATOR = frozenset({Role.OPERATOR})


class AuthInterceptor(grpc.aio.ServerInterceptor):
    """Calls ``authorize`` for every RPC. Runs inside ``ErrorInterceptor``, which ends a refused call."""

    def __init__(self, authorize: Callable[[Context, str], None]) -> None:
        """``authorize(context, method)`` raises ``Refused``; its text must not quote tokens or certificates."""
        self._authorize = authorize
        self._denials = RateLimitedLog(log, "denied")

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        handler = await continuation(handler_call_details)
        method = str(handler_call_details.method)
        return handler if handler is None or method.startswith(_OPEN_TO_ALL) else self._wrap(handler, method)

    def _wrap(self, handler: grpc.RpcMethodHandler[Any, Any], method: str) -> grpc.RpcMethodHandler[Any, Any]:
        kind = ("stream" if handler.request_streaming else "unary", "stream" if handler.response_streaming else "unary")
        behavior = getattr(handler, "_".join(kind))

        async def request_of(requests: Any, context: Context) -> Any:
            return requests if handler.request_streaming else await read_single_request(context)

        async def respond(requests: Any, context: Context) -> Any:
            self._check(context, method)
            return await behavior(await request_of(requests, context), context)

        async def respond_stream(requests: Any, context: Context) -> AsyncIterator[Any]:
            self._check(context, method)
            async with aclosing(behavior(await request_of(requests, context), context)) as responses:
                async for response in responses:
                    yield response

        wrapped = respond_stream if inspect.isasyncgenfunction(behavior) else respond
        # Handle it as a stream, so that gRPC reads no request before the handler does.
        make = getattr(grpc, f"stream_{kind[1]}_rpc_method_handler")
        return make(wrapped, handler.request_deserializer, handler.response_serializer)  # type: ignore[no-any-return]

    def _check(self, context: Context, method: str) -> None:
        try:
            self._authorize(context, method)
        except Refused as refused:
            code = refused.status.code.name
            self._denials.write(method=method, peer=context.peer(), code=code, reason=str(refused))
            raise


class ServiceAuthorizer:
    """Authorizes the services of the ring: by certificate, token or both, as configured."""

    def __init__(
        self,
        identities: Identities | None,
        tokens: ReloadedFile[tuple[str, ...]] | None,
        roles: Mapping[str, Collection[Role]],
    ) -> None:
        """``identities``: None if no certificate is required. ``roles``: the roles that may call each method.

        Operators may call methods that ``roles`` does not name.
        """
        self._identities = identities
        self._tokens = tokens
        self._roles = roles

    def authorize(self, context: Context, method: str) -> None:
        """Raise ``Refused`` unless the caller may call ``method``; else set its principal for the handler."""
        if self._identities is not None:
            names = (name.decode("utf-8", "replace") for name in context.auth_context().get(_CERTIFICATE_NAMES, ()))
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
        # Compare all tokens, each in constant time: the duration must not reveal how much of a token was right.
        matches = [hmac.compare_digest(shown.encode(), token.encode()) for token in known]
        if True not in matches:
            raise Refused(Code.UNAUTHENTICATED, f"{AUTHORIZATION}: unknown token: expected the services' token")
