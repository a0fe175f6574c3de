"""The table of docs/reference/errors.md: every reason of an error, by its comment in the contract, and what the Python
client and the gateway make of it.

``python -m tests.docs.errors_table`` writes it into the page.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import grpc
from google.rpc import error_details_pb2, status_pb2
from ringline.errors import from_status

from services.gateway.http.api_error import api_error_from
from tests.docs.documents import ROOT, Generated
from tests.docs.protos_pages import Comments, files

_CODES = {code.name: code for code in grpc.StatusCode}
_ENUM, _VALUE = 5, 2
"""Numbers of fields in descriptors."""


def reasons() -> Iterator[tuple[str, str]]:
    """Each reason that is sent, with what the contract says of it."""
    [file] = [file for file in files()["types"] if file.name.endswith("error.proto")]
    comments = Comments(file)
    for index, value in enumerate(file.enum_type[0].value):
        if value.number:
            yield value.name.removeprefix("ERROR_REASON_"), comments.cell(_ENUM, 0, _VALUE, index)


def row(reason: str, told: str) -> str:
    """A reason with its codes: the first is what clients get, others are engines'."""
    names, _, when = told.partition(":")
    codes = [_CODES[name] for name in re.findall(r"[A-Z_]{5,}", names)]
    status = status_pb2.Status(code=codes[0].value[0], message="why")
    status.details.add().Pack(error_details_pb2.ErrorInfo(domain="ringline", reason=reason))
    error = from_status(status)
    answer = api_error_from(error, str)
    cells = (
        f"`{reason}`",
        " or ".join(f"`{code.name}`" for code in codes),
        f"`{type(error).__name__}`",
        f"{int(answer.status)} `{answer.code}`",
        when.strip(),
    )
    return f"| {' | '.join(cells)} |\n"


def errors() -> str:
    head = "| reason | gRPC | Python | HTTP | when |\n|---|---|---|---|---|\n"
    return head + "".join(row(reason, told) for reason, told in reasons())


TABLE = Generated(
    ROOT / "docs" / "reference" / "errors.md",
    "<!-- By `python -m tests.docs.errors_table`, which a test runs. -->\n",
    "<!-- End of the table. -->",
    errors,
)

if __name__ == "__main__":
    TABLE.write()
