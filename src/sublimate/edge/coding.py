"""How what is sent is written: gzip of whole answers, and of request bodies where that is switched
on; whether a client wants its stream in binary frames.

defines: accepts_gzip, FRAMES_TYPE, accepts_frames, pays, compress, GzipBody
"""

from __future__ import annotations

import gzip
import re
import zlib

from . import limits
from .errors import ApiError

GZIP_WINDOW_BITS = 31
"""zlib's way to say: a gzip header and trailer."""
WEIGHT = re.compile(r"0(\.[0-9]{0,3})?|1(\.0{0,3})?")
"""RFC 9110, section 12.4.2."""
LEVEL = 1
"""The least work: what is sent here is text, and the processor is the model's."""


def accepts_gzip(field: str) -> bool:
    """By an Accept-Encoding field. A weight of 0 is a no, whatever else the field says."""
    accepted = False
    for part in field.lower().split(","):
        name, _, parameters = part.partition(";")
        if name.strip() in ("gzip", "x-gzip"):
            weight = parameters.replace(" ", "").partition("q=")[2] or "1"
            accepted = weight.strip("0.") != ""
    return accepted


FRAMES_TYPE = "application/octet-stream"
EVENTS_TYPES = ("text/event-stream", "text/*", "*/*")
"""What stands for server-sent events, the most specific first."""


def accepts_frames(field: str) -> bool:
    """By an Accept field: frames are named, and wanted no less than server-sent events are. A
    wildcard names nothing: who does not know of frames gets none."""
    if FRAMES_TYPE not in field.lower():
        return False
    weights: dict[str, float] = {}
    for part in field.lower().split(","):
        name, *parameters = part.replace(" ", "").replace("\t", "").split(";")
        weight = next((text[2:] for text in parameters if text.startswith("q=")), "1")
        is_weight = WEIGHT.fullmatch(weight) is not None
        weights[name] = float(weight) if is_weight else 0.0
    of_events = next((weights[name] for name in EVENTS_TYPES if name in weights), 0.0)
    return 0.0 < weights.get(FRAMES_TYPE, 0.0) >= of_events


def compress(body: bytes) -> bytes:
    """As one gzip member; equal for equal bodies."""
    return gzip.compress(body, LEVEL, mtime=0)


class GzipBody:
    """A request body that arrives compressed, decoded as it comes and never beyond a limit."""

    def __init__(self, bytes_max: int) -> None:
        self._inflater = zlib.decompressobj(GZIP_WINDOW_BITS)
        self._left = bytes_max
        self._bytes_max = bytes_max

    def feed(self, data: bytes) -> bytes:
        """What this part decodes to. Raises ApiError."""
        try:
            # One byte above what may still come tells a body that is too large from one that fits.
            decoded = self._inflater.decompress(data, self._left + 1)
        except zlib.error:
            raise ApiError("body_not_gzip") from None
        if len(decoded) > self._left:
            raise ApiError("body_too_large_decoded", maximum=self._bytes_max)
        if self._inflater.unused_data:
            raise ApiError("body_not_gzip")
        self._left -= len(decoded)
        return decoded

    def finish(self) -> None:
        """Raises ApiError if the end is missing."""
        if not self._inflater.eof:
            raise ApiError("body_not_gzip")


def pays(size: int) -> bool:
    """Whether an answer of so many bytes is worth the time on the event loop."""
    return limits.GZIP_BYTES_MIN <= size <= limits.GZIP_BYTES_MAX
