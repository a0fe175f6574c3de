"""What goes over the pipes between a process that decodes pictures (``child``) and who started it.

A request is a kind, a length and a payload. An answer is a kind, two numbers and what belongs to it: the text of an
error, or the views' pixels, of which both sides know the lengths by the plan for the picture's size.
"""

from __future__ import annotations

import enum
import struct

REQUEST = struct.Struct("<BI")
"""Kind and length."""
ANSWER = struct.Struct("<BII")
"""Kind and two numbers."""
MIME = struct.Struct("<H")
"""Length of the declared type, which begins the payload of a picture."""
MAX_ERROR_BYTES = 4096


class Request(enum.IntEnum):
    """Kinds of requests."""

    FACTS = 1
    """The model's facts, for the pictures to come."""
    PICTURE = 2


class Answer(enum.IntEnum):
    """Kinds of answers."""

    READY = 1
    """The first one: the process is confined, and takes requests. Both numbers are 0."""
    PICTURE = 2
    """Width and height of the upright picture; the pixels of its views follow."""
    ERROR = 3
    """The picture cannot be used. Bytes of the text that follows, and 0."""
    FAILED = 4
    """The process, or the model's facts, cannot be used; numbers as of ERROR. The process ends."""
