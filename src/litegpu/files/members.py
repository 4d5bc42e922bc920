"""Members of container files."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise

from litegpu.errors import ModelError
from litegpu.wording import printable

MODEL = "model"
"""The kind of members that are .tflite models."""
WEIGHTS = "weights"
"""The kind of members that are weights of a model of the same name."""
MODEL_IDENTIFIER = b"TFL3"
"""The file identifier in bytes 4 to 7 of every .tflite file."""
ZIP_IDENTIFIERS = (b"PK\x03\x04", b"PK\x05\x06")
"""The first bytes of a zip archive with members, and of an empty archive."""
LITERTLM_IDENTIFIER = b"LITERTLM"
MAX_MEMBERS = 1000


@dataclass(frozen=True, slots=True)
class Member:
    """A part of a container."""

    name: str
    kind: str
    """The kind of the member: `model`, or another text."""
    size: int
    """Number of bytes of the member after decompression."""
    view: Callable[[], memoryview] = field(repr=False, compare=False)
    """Returns the member's content, memory-mapped or decompressed. Raises ModelError."""


def damaged(path: str, why: str) -> ModelError:
    """Return the error for a container that cannot be read."""
    return ModelError(
        f"'{printable(path)}' is damaged: {printable(why)}. Download or convert it again."
    )


def check_ranges(path: str, ranges: Iterable[tuple[int, int, str]], begin: int, end: int) -> None:
    """Check that all members (begin, end, name) are inside the file and do not overlap.

    Raises ModelError if a member exceeds the file or overlaps another one.
    """
    ordered = sorted(ranges)
    for first, last, name in ordered:
        if not begin <= first <= last <= end:
            raise damaged(
                path, f"'{name}' is at bytes {first} to {last}, outside of {begin} to {end}"
            )
    for (_, last, name), (first, _, other) in pairwise(ordered):
        if first < last:
            raise damaged(path, f"'{name}' and '{other}' overlap")
