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
_OF_NAME = "[A-Za-z0-9._~!$&'()*+,;=-]"
_SEGMENT = f"(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|{_HEX_BYTE})"
_SEGMENTS = f"(?:/{_SEGMENT}*)*"
_AUTHORITY = f"//(?:{_OF_NAME}|{_HEX_BYTE})*(?::[0-9]{{1,5}})?"
_SCHEME = "[A-Za-z][A-Za-z0-9+.-]*:"
_RELATIVE = f"/(?:{_SEGMENT}+{_SEGMENTS})?|(?:{_OF_NAME}|@|{_HEX_BYTE})+{_SEGMENTS}"
_ABSOLUTE = f"{_SCHEME}(?:{_AUTHORITY}{_SEGMENTS}|/?(?:{_SEGMENT}+{_SEGMENTS})?)"
_END = rf"(?:\?(?:{_SEGMENT}|[/?])*)?(?:#(?:{_SEGMENT}|[/?])*)?"
_URI_REFERENCE = f"(?:{_ABSOLUTE}|{_AUTHORITY}{_SEGMENTS}|{_RELATIVE})?{_END}"
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
    "hostname": None,
    "ipv4": None,
    "ipv6": None,
    "uuid": None,
    "uri": None,
    "uri-reference": _URI_REFERENCE,
    "uri-template": _URI_TEMPLATE,
    "json-pointer": _POINTER,
    "relative-json-pointer": f"(?:0|[1-9][0-9]*)(?:#|{_POINTER})",
    **{f"uuid{version}": _UUID % version for version in (1, 3, 4, 5, 6, 7, 8)},
}
"""Formats that are enforced, and expressions for them where llguidance has none, or one that allows too much, such as
the 30th of February. Any other annotates, as JSON Schema has it: ``int64``, ``double``, ``password``, ``path``."""
