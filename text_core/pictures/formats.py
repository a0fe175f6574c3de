"""Formats of pictures: by what a file begins with, and how a declared type names them."""

from __future__ import annotations

import enum

from text_core.pictures.base import PictureError

CONVERT = "send it as PNG or JPEG"


class Format(enum.Enum):
    """A format that is decoded, by Pillow's name, with its types by IANA and others."""

    PNG = ("image/png", "image/apng", "image/x-png")
    JPEG = ("image/jpeg", "image/jpg", "image/pjpeg")
    WEBP = ("image/webp",)
    GIF = ("image/gif",)
    BMP = ("image/bmp", "image/x-bmp", "image/x-ms-bmp")
    TIFF = ("image/tiff", "image/tif")


_BEGINNINGS = {
    b"\x89PNG\r\n\x1a\n": Format.PNG,
    b"\xff\xd8\xff": Format.JPEG,
    b"GIF87a": Format.GIF,
    b"GIF89a": Format.GIF,
    b"BM": Format.BMP,
    b"II*\x00": Format.TIFF,
    b"MM\x00*": Format.TIFF,
}
_OTHERS = {
    b"<svg": "SVG",
    b"<?xml": "XML, such as SVG",
    b"<!DOCTYPE": "a web page",
    b"<html": "a web page",
    b"%PDF": "PDF",
    b"PK\x03\x04": "a ZIP archive",
    b"\x00\x00\x01\x00": "ICO",
    b"\x00\x00\x00\x0cjP  ": "JPEG 2000",
    b"II+\x00": "BigTIFF",
    b"MM\x00+": "BigTIFF",
    b"8BPS": "Photoshop",
    b"\xff\x0a": "JPEG XL",
    b"\x00\x00\x00\x0cJXL ": "JPEG XL",
}
_BRANDS = {b"avif": "AVIF", b"avis": "AVIF", b"heic": "HEIC", b"heix": "HEIC", b"mif1": "HEIF", b"isom": "a video"}
_ANY_TYPE = frozenset({"", "image", "image/*", "application/octet-stream", "binary/octet-stream"})
_READ = ", ".join(one.name for one in Format)


def format_of(data: bytes, mime: str) -> Format:
    """By the content, which must be as declared. Raises ``PictureError``."""
    if not data:
        raise PictureError("it is empty: 0 bytes; send the picture's file")
    found = _found(data)
    if isinstance(found, str):
        raise PictureError(f"it is {found}, and only {_READ} are read; {CONVERT}")
    declared = mime.partition(";")[0].strip().lower()
    if declared not in _ANY_TYPE and declared not in found.value:
        shown = declared[:64].encode("ascii", "replace").decode()
        raise PictureError(
            f"it is declared as {shown}, but it is {found.name}; declare {found.value[0]}, or check the file"
        )
    return found


def _found(data: bytes) -> Format | str:
    """What it is, for a format that is not read in words."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return Format.WEBP
    for beginning, known in _BEGINNINGS.items():
        if data.startswith(beginning):
            return known
    text = data[:256].lstrip(b"\xef\xbb\xbf \t\r\n")
    for beginning, name in _OTHERS.items():
        if data.startswith(beginning) or text.startswith(beginning):
            return name
    if data[4:8] == b"ftyp":
        return _BRANDS.get(data[8:12], "a video")
    return "no picture of a known format"


def webp_size(data: bytes) -> tuple[int, int]:
    """Width and height in the file's first chunk. Raises ``PictureError``."""
    head = data[20:30]
    if len(head) == 10:
        match data[12:16]:
            case b"VP8X":
                return 1 + int.from_bytes(head[4:7], "little"), 1 + int.from_bytes(head[7:10], "little")
            case b"VP8 " if head[3:6] == b"\x9d\x01\x2a":
                width, height = int.from_bytes(head[6:8], "little"), int.from_bytes(head[8:10], "little")
                return width & 0x3FFF, height & 0x3FFF
            case b"VP8L" if head[:1] == b"\x2f":
                bits = int.from_bytes(head[1:5], "little")
                return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    raise PictureError(f"its WEBP data is damaged or incomplete (it begins with no known chunk); {CONVERT}")
