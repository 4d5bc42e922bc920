"""Reads the options of MediaPipe's older custom ops, which are the bytes of a C struct."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

_PADDINGS = ("valid", "same", "valid")
"""Padding schemes by number; MediaPipe treats an unknown scheme (0) as no padding."""
_ACTIVATIONS = ("none", "relu", "relu_n1_to_1", "relu6", "tanh", "sign_bit", "sigmoid")

TRANSPOSE_CONV = ("padding", "stride_width", "stride_height")
POOL = (*TRANSPOSE_CONV, "filter_width", "filter_height", "activation")


def read(custom: bytes, names: Sequence[str]) -> Mapping[str, Any]:
    """Return the leading int32 fields as an operation's parameters; additional bytes are ignored.

    The function raises ValueError if bytes are missing or a number is invalid.
    """
    if len(custom) < 4 * len(names):
        raise ValueError(f"{len(custom)} bytes of options where {4 * len(names)} are needed")
    numbers = struct.unpack_from(f"<{len(names)}i", custom)
    found: dict[str, Any] = dict(zip(names, numbers, strict=True))
    for name, words in (("padding", _PADDINGS), ("activation", _ACTIVATIONS)):
        number = found.get(name)
        if number is not None:
            if not 0 <= number < len(words):
                raise ValueError(
                    f"{name} is {number} in the options; 0 to {len(words) - 1} are known"
                )
            found[name] = words[number]
    return found
