"""Opens pictures with Pillow, and makes their views.

Only the few formats below are tried, by what a file begins with, and limits are checked before pixels are decoded. What
a malicious file may still do is the matter of the process that this runs in (``child``).
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator

from PIL import (
    BmpImagePlugin,
    ExifTags,
    GifImagePlugin,
    Image,
    ImageFile,
    ImageMode,
    ImageOps,
    JpegImagePlugin,
    MpoImagePlugin,
    PngImagePlugin,
    TiffImagePlugin,
    TiffTags,
    WebPImagePlugin,
)

from text_core.pictures.base import Alpha, PictureError, PicturePlan, PictureProcessor, ViewPlan
from text_core.pictures.formats import CONVERT, Format, format_of, webp_size
from text_core.pictures.limits import PictureLimits
from text_core.pictures.prepared import PreparedItem, PreparedPicture, PreparedView

LOADED = (
    BmpImagePlugin,
    ExifTags,
    GifImagePlugin,
    ImageFile,
    ImageMode,
    ImageOps,
    JpegImagePlugin,
    MpoImagePlugin,
    PngImagePlugin,
    TiffImagePlugin,
    TiffTags,
    WebPImagePlugin,
)
"""All of Pillow that decoding needs: a process that may open no more files must have loaded it before."""

_TIFF_COMPRESSIONS = frozenset(
    {"raw", "tiff_ccitt", "group3", "group4", "tiff_lzw", "jpeg", "tiff_adobe_deflate", "tiff_deflate", "packbits"}
)
"""What scanners and editors write; libtiff knows others, which hardly anyone tests."""
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""By EXIF's orientation; 1 is upright."""
_STRIP_PIXELS = 1 << 22
"""Pixels that are laid over white at a time."""
_MAX_DETAIL = 120
"""Characters of Pillow's own words in an error."""
_MAX_8_BIT, _MAX_16_BIT = 255, 65535


def prepare_process() -> None:
    """Load what Pillow loads late, and leave the limit of pixels to ours: for a process that only decodes."""
    Image.preinit()
    Image.MAX_IMAGE_PIXELS = None


def prepare(
    processor: PictureProcessor, data: bytes, mime: str = "", limits: PictureLimits | None = None
) -> PreparedPicture:
    """Decode a picture and make its views. Raises ``PictureError``, whose text goes to the sender.

    ``mime``: the declared type; empty if none is known.
    """
    image = open_picture(data, mime, limits or PictureLimits(), processor.alpha)
    plan = processor.plan(*image.size)
    views = make_views(image, plan)
    items = (PreparedItem.of(item, (next(views) for _ in item.views)) for item in plan.items)
    return PreparedPicture(plan, tuple(items))


def open_picture(data: bytes, mime: str, limits: PictureLimits, alpha: Alpha) -> Image.Image:
    """The picture in RGB, upright. Raises ``PictureError``."""
    if len(data) > limits.max_bytes:
        raise PictureError(
            f"its file has {len(data)} bytes, more than the {limits.max_bytes} that are accepted; send a smaller one"
        )
    kind = format_of(data, mime)
    try:
        return _decoded(data, kind, limits, alpha)
    except PictureError:
        raise
    except Image.DecompressionBombError:  # far above Pillow's own limit
        raise PictureError(
            f"it has more than the {limits.max_pixels} pixels that are accepted; make it smaller"
        ) from None
    except MemoryError:
        raise PictureError("it takes more memory to decode than a picture may; send a smaller one") from None
    except Exception as error:  # of many kinds: Pillow's decoders raise what they please
        text = " ".join(str(error).split())[:_MAX_DETAIL] or type(error).__name__
        raise PictureError(f"its {kind.name} data is damaged or incomplete ({text}); {CONVERT}") from None


def _decoded(data: bytes, kind: Format, limits: PictureLimits, alpha: Alpha) -> Image.Image:
    if kind is Format.WEBP:  # its decoder takes memory for all pixels when it opens the file
        _check_size(*webp_size(data), limits)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what is odd in a file; the limit of pixels is ours
        with Image.open(io.BytesIO(data), formats=(kind.name,)) as image:
            _check_size(*image.size, limits)
            if kind is Format.TIFF and (codec := image.info.get("compression")) not in _TIFF_COMPRESSIONS:
                raise PictureError(f"its TIFF data is compressed by {str(codec)[:32]}, which is not read; {CONVERT}")
            image.load()
            turn = _UPRIGHT.get(_orientation(image))
            upright = in_rgb(image, alpha)
            return upright if turn is None else upright.transpose(turn)


def _check_size(width: int, height: int, limits: PictureLimits) -> None:
    if width < 1 or height < 1:
        raise PictureError(f"it is {width} × {height} pixels: it is empty")
    if width * height > limits.max_pixels:
        raise PictureError(
            f"it is {width} × {height} pixels, {width * height} together, more than the {limits.max_pixels} that are "
            "accepted; make it smaller"
        )


def _orientation(image: Image.Image) -> int:
    """EXIF's orientation; 1 where it has none that can be read, as viewers do."""
    try:
        value = image.getexif().get(ExifTags.Base.Orientation, 1)
        return int(value)
    except Exception:  # of many kinds, and no reason to refuse the picture
        return 1


def in_rgb(image: Image.Image, alpha: Alpha) -> Image.Image:
    """Any mode as RGB. Deeper grey becomes 8 bits by its highest ones."""
    if image.mode.startswith(("I", "F")):
        return _from_deep_grey(image).convert("RGB")
    is_transparent = "A" in image.getbands() or image.info.get("transparency") is not None
    if not is_transparent or alpha is Alpha.DROPPED:
        return image if image.mode == "RGB" else image.convert("RGB")
    # Strip by strip, for the sake of memory.
    result = Image.new("RGB", image.size)
    rows = max(1, _STRIP_PIXELS // image.width)
    for top in range(0, image.height, rows):
        strip = image.crop((0, top, image.width, min(top + rows, image.height))).convert("RGBA")
        white = Image.new("RGBA", strip.size, (255, 255, 255, 255))
        result.paste(Image.alpha_composite(white, strip).convert("RGB"), (0, top))
    return result


def _from_deep_grey(image: Image.Image) -> Image.Image:
    """Grey of 16 or 32 bits, or of floating point, as grey of 8."""
    if image.mode.startswith("I;16"):
        return _scaled(image.convert("I"), _MAX_16_BIT)
    extrema = image.getextrema()
    most = max(float(one) for one in extrema if not isinstance(one, tuple))
    if image.mode == "F" and most <= 1.0:
        return _scaled(image, 1.0)
    return _scaled(image, _MAX_8_BIT if most <= _MAX_8_BIT else _MAX_16_BIT)


def _scaled(image: Image.Image, white: float) -> Image.Image:
    factor = _MAX_8_BIT / white
    return image.point(lambda value: value * factor + 0).convert("L")


def make_views(image: Image.Image, plan: PicturePlan) -> Iterator[PreparedView]:
    """The pixels of all items' views, in order."""
    sizes = _Sizes(image)
    for item in plan.items:
        for view in item.views:
            yield _view(sizes, view)


def _view(sizes: _Sizes, plan: ViewPlan) -> PreparedView:
    image = sizes.resized(plan)
    if plan.crop is not None:
        image = image.crop(plan.crop)
    if plan.canvas is not None:
        canvas = Image.new("RGB", plan.canvas, plan.canvas_color)
        canvas.paste(image, plan.canvas_at)
        image = canvas
    return PreparedView(*image.size, image.tobytes())


class _Sizes:
    """A picture in the sizes that the last view went through, because those of the next are often the same."""

    def __init__(self, image: Image.Image) -> None:
        self._image = image
        self._steps: list[tuple[object, Image.Image]] = []

    def resized(self, plan: ViewPlan) -> Image.Image:
        image = self._image
        sources = () if plan.source is None else (plan.source,)
        for index, step in enumerate((*sources, *plan.through, (plan.width, plan.height))):
            key = (step, plan.resample)
            if index < len(self._steps) and self._steps[index][0] == key:
                image = self._steps[index][1]
                continue
            del self._steps[index:]
            image = image.crop(step) if len(step) == 4 else _resized(image, step, plan)
            self._steps.append((key, image))
        return image


def _resized(image: Image.Image, size: tuple[int, int], plan: ViewPlan) -> Image.Image:
    return image if image.size == size else image.resize(size, Image.Resampling(plan.resample))
