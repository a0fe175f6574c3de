"""Files of every format and mode beside transformers' reading of them; those that are no pictures, or too large."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import ExifTags, Image, ImageOps
from transformers.image_transforms import convert_to_rgb

from tests.text_core.pictures.samples import facts_of, noise, saved
from text_core.pictures.base import Alpha, PictureError
from text_core.pictures.decode import open_picture, prepare
from text_core.pictures.limits import PictureLimits
from text_core.pictures.registry import processor_of

LIMITS = PictureLimits()
TYPES = {"PNG": "image/png", "JPEG": "image/jpeg", "WEBP": "image/webp", "GIF": "image/gif", "BMP": "image/bmp"}
TYPES["TIFF"] = "image/tiff"
MODES = {
    "PNG": ["1", "L", "LA", "P", "RGB", "RGBA"],
    "JPEG": ["L", "RGB", "CMYK"],
    "WEBP": ["RGB", "RGBA"],
    "GIF": ["1", "L", "P", "RGB", "RGBA"],
    "BMP": ["1", "L", "P", "RGB"],
    "TIFF": ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK"],
}


def opened(data: bytes, mime: str = "", alpha: Alpha = Alpha.WHITE) -> Image.Image:
    return open_picture(data, mime, LIMITS, alpha)


def of_mode(mode: str, width: int = 23, height: int = 17) -> Image.Image:
    if mode == "1":
        return noise(width, height, "L").convert("1")
    if mode == "P":
        return noise(width, height).convert("P", palette=Image.Palette.ADAPTIVE, colors=16)
    return noise(width, height, mode)


def as_in_transformers(data: bytes) -> np.ndarray:
    return convert_to_rgb(ImageOps.exif_transpose(Image.open(io.BytesIO(data))), return_numpy=True)


@pytest.mark.parametrize(("kind", "mode"), [(kind, mode) for kind, modes in MODES.items() for mode in modes])
def test_modes_become_rgb_as_in_transformers(kind, mode) -> None:
    data = saved(of_mode(mode), kind)
    image = opened(data, TYPES[kind])
    assert image.mode == "RGB"
    assert np.array_equal(np.asarray(image), as_in_transformers(data))


@pytest.mark.parametrize("codec", ["raw", "tiff_lzw", "tiff_adobe_deflate", "packbits", "jpeg", "group4"])
def test_usual_codecs_of_tiff_are_read(codec) -> None:
    data = saved(of_mode("1" if codec == "group4" else "RGB"), "TIFF", compression=codec)
    assert np.array_equal(np.asarray(opened(data)), as_in_transformers(data))


@pytest.mark.parametrize("transparency", [3, bytes(range(0, 240, 16))])
def test_transparent_colours_of_a_palette_become_white(transparency) -> None:
    data = saved(of_mode("P"), "PNG", transparency=transparency)
    assert np.array_equal(np.asarray(opened(data)), as_in_transformers(data))


def test_transparency_can_be_dropped() -> None:
    data = saved(image := noise(30, 20, "RGBA"))
    assert np.array_equal(np.asarray(opened(data, alpha=Alpha.DROPPED)), np.asarray(image)[..., :3])


def test_transparency_of_a_large_picture_is_that_of_its_strips() -> None:
    data = saved(noise(3001, 1450, "RGBA"), "PNG", compress_level=0)
    assert np.array_equal(np.asarray(opened(data)), as_in_transformers(data))


def test_deep_grey_keeps_its_highest_bits() -> None:
    """Pillow alone would make everything above 255 white."""
    values = [0, 256, 32768, 65535]
    deep = Image.new("I;16", (4, 1))
    for x, value in enumerate(values):
        deep.putpixel((x, 0), value)
    for data in (saved(deep), saved(deep, "TIFF")):
        assert [pixel[0] for pixel in np.asarray(opened(data))[0]] == [0, 0, 127, 255]
    real = Image.new("F", (3, 1))
    for x, value in enumerate([0.0, 0.5, 1.0]):
        real.putpixel((x, 0), value)
    assert [pixel[0] for pixel in np.asarray(opened(saved(real, "TIFF")))[0]] == [0, 127, 255]
    whole = Image.new("I", (2, 1), 200)
    assert [pixel[0] for pixel in np.asarray(opened(saved(whole, "TIFF")))[0]] == [200, 200]


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", range(9))
def test_pictures_are_turned_upright(kind, orientation) -> None:
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    data = saved(noise(31, 12), kind, exif=exif)
    assert np.array_equal(np.asarray(opened(data)), as_in_transformers(data))
    assert opened(data).size == ((12, 31) if orientation >= 5 else (31, 12))


def test_damaged_exif_is_no_reason_to_refuse() -> None:
    data = saved(noise(31, 12), "JPEG", exif=b"Exif\x00\x00MM\x00*\xff\xff\xff\xff garbage")
    assert opened(data).size == (31, 12)


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "TIFF", "PNG"])
def test_the_first_frame_is_taken(kind) -> None:
    first, second = Image.new("RGB", (20, 10), (255, 0, 0)), Image.new("RGB", (20, 10), (0, 0, 255))
    options = {"lossless": True} if kind == "WEBP" else {}
    data = saved(first, kind, save_all=True, append_images=[second], **options)
    assert opened(data).getpixel((3, 3)) == (255, 0, 0)


# What is no picture


@pytest.mark.parametrize("kind", TYPES)
def test_a_file_that_is_cut_off_is_refused(kind) -> None:
    data = saved(noise(64, 48), kind, **({"compression": "tiff_lzw"} if kind == "TIFF" else {}))
    for part in range(20):
        with pytest.raises(PictureError, match=r"send (it as|the picture)"):
            opened(data[: len(data) * part // 20])


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "it is empty: 0 bytes"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "it is SVG"),
        (b"\xef\xbb\xbf  <?xml version='1.0'?><svg/>", "it is XML"),
        (b"<html><body>", "it is a web page"),
        (b"%PDF-1.7", "it is PDF"),
        (b"PK\x03\x04" + b"\0" * 100, "it is a ZIP archive"),
        (b"\0\0\0\x20ftypavif" + b"\0" * 100, "it is AVIF"),
        (b"\0\0\0\x20ftypheic" + b"\0" * 100, "it is HEIC"),
        (b"\0" * 100, "no picture of a known format"),
        (b"\x89PNG\r\n\x1a\n", "its PNG data is damaged"),
        (b"RIFF\x10\0\0\0WEBPjunk" + b"\0" * 20, "its WEBP data is damaged"),
        (b"BM" + b"\xff" * 60, "its BMP data is damaged"),
    ],
)
def test_what_is_no_picture_is_refused_by_name(data, words) -> None:
    with pytest.raises(PictureError, match=words):
        opened(data)


@pytest.mark.parametrize("kind", ["PPM", "TGA", "ICO", "PCX", "EPS", "JPEG2000", "SGI", "DDS"])
def test_other_formats_that_pillow_knows_are_refused(kind) -> None:
    with pytest.raises(PictureError, match="only PNG, JPEG, WEBP, GIF, BMP, TIFF are read"):
        opened(saved(noise(32, 32), kind))


@pytest.mark.parametrize("codec", ["zstd", "lzma"])
def test_rare_codecs_of_tiff_are_refused(codec) -> None:
    with pytest.raises(PictureError, match="which is not read"):
        opened(saved(noise(32, 32), "TIFF", compression=codec))


@pytest.mark.parametrize("kind", TYPES)
def test_the_declared_type_must_be_that_of_the_content(kind) -> None:
    data = saved(noise(8, 8), kind)
    for mime in TYPES.values():
        if mime == TYPES[kind]:
            assert opened(data, mime.upper() + "; q=1").size == (8, 8)
        else:
            with pytest.raises(
                PictureError, match=f"it is declared as {mime}, but it is {kind}; declare {TYPES[kind]}"
            ):
                opened(data, mime)
    for mime in ("application/octet-stream", "image/*", "image"):
        assert opened(data, mime).size == (8, 8)


def test_polyglots_are_what_they_begin_with() -> None:
    """What follows a picture is never looked at."""
    archive = b"PK\x03\x04" + b"\0" * 26 + b"PK\x05\x06" + b"\0" * 18
    png = saved(noise(9, 7))
    assert opened(png + archive, "image/png").tobytes() == opened(png).tobytes()
    gif = saved(noise(9, 7), "GIF")
    assert opened(gif + b"/*<script>alert(1)</script>*/=1;").tobytes() == opened(gif).tobytes()
    with pytest.raises(PictureError, match="ZIP"):
        opened(archive + png)


# Limits


def png_header(width: int, height: int, data: bytes = b"") -> bytes:
    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(data)) + chunk(b"IEND", b"")


def huge(kind: str) -> bytes:
    """A file of a few bytes that says that it has billions of pixels."""
    side = struct.pack("<HH", 65535, 65535)
    match kind:
        case "PNG":
            return png_header(60_000, 60_000)
        case "GIF":
            return b"GIF89a" + side + b"\x80\0\0" + b"\0" * 6 + b",\0\0\0\0" + side + b"\0\x02\x02D\x01\0;"
        case "WEBP":
            body = b"VP8X\x0a\0\0\0\0\0\0\0" + b"\xff\x3f\0" * 2
            return b"RIFF" + struct.pack("<I", 4 + len(body)) + b"WEBP" + body
        case "BMP":
            head = struct.pack("<IiiHHIIiiII", 40, 60_000, 60_000, 1, 24, 0, 0, 0, 0, 0, 0)
            return b"BM" + struct.pack("<IHHI", 54, 0, 0, 54) + head
        case "JPEG":
            data = saved(noise(16, 16), "JPEG")
            start = data.index(b"\xff\xc0") + 5
            return data[:start] + struct.pack(">HH", 65_000, 65_000) + data[start + 4 :]
        case _:
            tags = [(256, 4, 60_000), (257, 4, 60_000), (258, 3, 8), (259, 3, 5), (262, 3, 1), (273, 4, 8), (279, 4, 9)]
            entries = b"".join(struct.pack("<HHII", tag, kind, 1, value) for tag, kind, value in tags)
            return struct.pack("<2sHIH", b"II", 42, 8, len(tags)) + entries + b"\0" * 20


@pytest.mark.parametrize("kind", TYPES)
def test_a_picture_with_too_many_pixels_is_refused_before_it_is_decoded(kind) -> None:
    with pytest.raises(PictureError, match=r"more than the 64000000 (pixels )?that are accepted"):
        opened(huge(kind))


def test_limits_are_those_that_are_given() -> None:
    data = saved(noise(20, 10))
    assert open_picture(data, "", PictureLimits(len(data), 200), Alpha.WHITE).size == (20, 10)
    with pytest.raises(PictureError, match="20 × 10 pixels, 200 together, more than the 199"):
        open_picture(data, "", PictureLimits(max_pixels=199), Alpha.WHITE)
    with pytest.raises(PictureError, match=f"its file has {len(data)} bytes, more than the {len(data) - 1}"):
        open_picture(data, "", PictureLimits(len(data) - 1), Alpha.WHITE)


def test_a_picture_of_no_width_is_refused() -> None:
    with pytest.raises(PictureError, match="is damaged"):
        opened(png_header(0, 5))


@pytest.mark.parametrize("architecture", ["Qwen3VLForConditionalGeneration", "DeepseekOCRForCausalLM"])
def test_one_pixel_is_a_picture(architecture) -> None:
    prepared = prepare(processor_of(facts_of(architecture)), saved(Image.new("RGB", (1, 1), (9, 99, 199))))
    assert bytes((9, 99, 199)) in prepared.items[0].views[0].pixels


def test_a_line_of_100000_pixels_is_refused_by_the_family() -> None:
    data = saved(Image.new("L", (100_000, 1)))
    with pytest.raises(PictureError, match="more than 200 times"):
        prepare(processor_of(facts_of("Qwen3VLForConditionalGeneration")), data)
