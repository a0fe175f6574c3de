"""What services can do beyond the version of the contract, by name; a request names those that it depends on."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from services.ring.events import Code, Reason, Refused, invalid_field

ENGINE = ("generate", "prompt_logprobs")
"""What every engine of this version can do; of a later one's capabilities these are the ones that are known here."""
PROCESSOR = ("resume",)
"""What a processor of this version adds."""
CHAT = "chat"
"""Of a model that has a chat template."""
MAX_REQUIRED, MAX_NAME_BYTES = 16, 64


def check_requires(required: Sequence[str], known: Collection[str]) -> None:
    """Raise ``Refused`` for the first name that is not known: what decides tokens is never passed over."""
    if len(required) > MAX_REQUIRED:
        raise invalid_field("requires", f"{len(required)} names: expected at most {MAX_REQUIRED}")
    for index, name in enumerate(required):
        if len(name.encode()) > MAX_NAME_BYTES:
            raise invalid_field(f"requires[{index}]", f"{len(name.encode())} bytes: expected at most {MAX_NAME_BYTES}")
        if name not in known:
            field = f"requires[{index}]"
            problem = f"{name!r} is not known here: expected some of {', '.join(sorted(known))}"
            message = f"{field}: {problem}"
            raise Refused(Code.FAILED_PRECONDITION, message, reason=Reason.CAPABILITY_MISSING, field=field)
