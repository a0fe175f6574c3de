"""The formats of texts that JSON Schema names, as regular expressions.

Dates are those of RFC 3339, URIs of RFC 3986, their templates of RFC 6570, JSON pointers of RFC 6901.
"""

from __future__ import annotations

from collections.abc import Mapping

_TIME = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
_LEAP_YEAR = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_YEAR = "(?:[0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"
_LONG_MONTH, _SHORT_MONTH = "(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])", "(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
_DAY = f"(?:{_LONG_MONTH}|{_SHORT_MONTH}|02-(?:0[1-9]|1[0-9]|2[0-8]))"
_DATE = f"(?:{_YEAR}-{_DAY}|{_LEAP_YEAR}-02-29)"

_HEX_BYTE = "%[0-9A-Fa-f]{2}"
_BEYOND_ASCII = r"\u00a0-\ud7ff\uf900-\ufdcf\ufdf0-\uffef"


def _references(more: str = "") -> tuple[str, str]:
    """Absolute URIs, and references, which may be relative; ``more``: other characters that they may have."""
    of_name = f"[A-Za-z0-9._~!$&'()*+,;={more}-]"
    segment = f"(?:[A-Za-z0-9._~!$&'()*+,;=:@{more}-]|{_HEX_BYTE})"
    segments = f"(?:/{segment}*)*"
    authority = f"//(?:{of_name}|{_HEX_BYTE})*(?::[0-9]{{1,5}})?"
    relative = f"/(?:{segment}+{segments})?|(?:{of_name}|@|{_HEX_BYTE})+{segments}"
    absolute = f"[A-Za-z][A-Za-z0-9+.-]*:(?:{authority}{segments}|/?(?:{segment}+{segments})?)"
    end = rf"(?:\?(?:{segment}|[/?])*)?(?:#(?:{segment}|[/?])*)?"
    return f"(?:{absolute}){end}", f"(?:{absolute}|{authority}{segments}|{relative})?{end}"


def _regex() -> str:
    """Regular expressions that every dialect reads alike, with groups in groups."""
    escape = r"\\[dDwWsStnr.^$|()\[\]{}*+?/]"
    members = rf"(?:a-z|A-Z|0-9|[^\x00-\x1f\]\\\[^-]|{escape}|\\-)"
    atom = rf"(?:[^\x00-\x1f\\^$.|?*+()\[\]{{}}]|\.|{escape}|\[\^?{members}{members}*\])"
    repeated = r"(?:[*+?]|\{[1-9][0-9]?,?\})?"
    expression = rf"(?:{atom}{repeated}|[|^$])*"
    for _ in range(2):
        expression = rf"(?:{atom}{repeated}|[|^$]|\((?:\?:)?{expression}\){repeated})*"
    return expression


_IRI, _IRI_REFERENCE = _references(_BEYOND_ASCII)
_LABEL = "[A-Za-z0-9](?:-?[A-Za-z0-9]){0,30}"
_HOSTNAME = rf"(?:{_LABEL}\.){{0,3}}{_LABEL}"
_EMAIL = rf"[A-Za-z0-9_+-]{{1,30}}(?:\.[A-Za-z0-9_+-]{{1,30}})?@{_HOSTNAME}"
_POINTER = "(?:/(?:[^~/]|~[01])*)*"
_VARIABLE = r"(?:[A-Za-z0-9_]|%[0-9A-Fa-f]{2})+(?::[1-9][0-9]{0,3}|\*)?"
_URI_TEMPLATE = rf"(?:[A-Za-z0-9._~!$&()*+,;=:@/?#\[\]-]|{_HEX_BYTE}|\{{[+#./;?&]?{_VARIABLE}(?:,{_VARIABLE})*\}})*"

_UUID = "[0-9a-f]{8}-[0-9a-f]{4}-%d[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"

FORMATS: Mapping[str, str | None] = {
    "date-time": f"{_DATE}T{_TIME}",
    "date": _DATE,
    "time": _TIME,
    "duration": None,
    "email": None,
    "idn-email": _EMAIL,
    "hostname": _HOSTNAME,
    "idn-hostname": _HOSTNAME,
    "ipv4": None,
    "ipv6": None,
    "uuid": None,
    "uri": None,
    "uri-reference": _references()[1],
    "iri": _IRI,
    "iri-reference": _IRI_REFERENCE,
    "uri-template": _URI_TEMPLATE,
    "json-pointer": _POINTER,
    "relative-json-pointer": f"(?:0|[1-9][0-9]*)(?:#|{_POINTER})",
    "regex": _regex(),
    **{f"uuid{version}": _UUID % version for version in (1, 3, 4, 5, 6, 7, 8)},
}
"""Formats that are enforced, and expressions for them where llguidance has none, or one that allows too much, such as
the 30th of February. Any other annotates, as JSON Schema has it: ``int64``, ``double``, ``password``, ``path``."""
