"""Client of Ringline, which serves language models over gRPC.

``Client`` and ``AsyncClient`` are the library; the contract's generated stubs are beside it, in
``ringline.inference.v1`` and its sibling packages.
"""

from ringline.aio import AsyncClient
from ringline.aio_stream import AsyncStream
from ringline.client import Client
from ringline.errors import (
    Cancelled,
    DeadlineExceeded,
    FailedPrecondition,
    InvalidRequest,
    NotFound,
    Overloaded,
    PermissionDenied,
    ProtocolError,
    RingError,
    ServerError,
    Truncated,
    Unavailable,
)
from ringline.options import Message, Options, TextPart, ToolCall
from ringline.outputs import Admitted, Choice, FinishReason, Partial, TokenLogprob, Usage
from ringline.results import (
    Delta,
    Event,
    Finished,
    Generation,
    Model,
    Prefill,
    PromptLogprobs,
    Resumed,
    Started,
    Tokenization,
)
from ringline.session import Session
from ringline.stream import Stream

__all__ = [
    "Admitted",
    "AsyncClient",
    "AsyncStream",
    "Cancelled",
    "Choice",
    "Client",
    "DeadlineExceeded",
    "Delta",
    "Event",
    "FailedPrecondition",
    "FinishReason",
    "Finished",
    "Generation",
    "InvalidRequest",
    "Message",
    "Model",
    "NotFound",
    "Options",
    "Overloaded",
    "Partial",
    "PermissionDenied",
    "Prefill",
    "PromptLogprobs",
    "ProtocolError",
    "Resumed",
    "RingError",
    "ServerError",
    "Session",
    "Started",
    "Stream",
    "TextPart",
    "TokenLogprob",
    "Tokenization",
    "ToolCall",
    "Truncated",
    "Unavailable",
    "Usage",
]
