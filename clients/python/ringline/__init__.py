"""Client of Ringline, which serves language models over gRPC.

Start from ``Client`` or ``AsyncClient``. The generated gRPC stubs are in ``ringline.inference.v1`` and its siblings.
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
from ringline.options import (
    BeamSearch,
    ImagePart,
    ImageUrlPart,
    Message,
    MessageToolCall,
    NoRepeatNgram,
    Options,
    Parse,
    Picture,
    StructuralTag,
    StructuralTags,
    TextPart,
    ToolCalls,
)
from ringline.outputs import Admitted, Choice, FinishReason, Partial, TokenLogprob, Usage
from ringline.parts import Content, ParseError, Part, Reasoning, ToolCall, ToolCallPiece
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
    "BeamSearch",
    "Cancelled",
    "Choice",
    "Client",
    "Content",
    "DeadlineExceeded",
    "Delta",
    "Event",
    "FailedPrecondition",
    "FinishReason",
    "Finished",
    "Generation",
    "ImagePart",
    "ImageUrlPart",
    "InvalidRequest",
    "Message",
    "MessageToolCall",
    "Model",
    "NoRepeatNgram",
    "NotFound",
    "Options",
    "Overloaded",
    "Parse",
    "ParseError",
    "Part",
    "Partial",
    "PermissionDenied",
    "Picture",
    "Prefill",
    "PromptLogprobs",
    "ProtocolError",
    "Reasoning",
    "Resumed",
    "RingError",
    "ServerError",
    "Session",
    "Started",
    "Stream",
    "StructuralTag",
    "StructuralTags",
    "TextPart",
    "TokenLogprob",
    "Tokenization",
    "ToolCall",
    "ToolCallPiece",
    "ToolCalls",
    "Truncated",
    "Unavailable",
    "Usage",
]
