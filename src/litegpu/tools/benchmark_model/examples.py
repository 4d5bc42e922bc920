"""Encodes tensors as a tf.Example, TensorFlow's record of named features."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from litegpu.errors import ModelError
from litegpu.files.wire import message, repeated, varints

_BYTES, _FLOATS, _INTEGERS = 1, 2, 3
"""Field numbers of the message Feature."""


def example(tensors: Mapping[str, NDArray[Any]]) -> bytes:
    """Return a tf.Example with one feature per tensor, which contains the flattened elements.

    Floats are cast to float32, integers and bools to int64, and strings to bytes.

    Raises:
        ModelError: a tensor holds complex numbers.
    """
    features = (message((1, name), (2, _feature(name, each))) for name, each in tensors.items())
    return message((1, message(*repeated(1, features))))


def _feature(name: str, values: NDArray[Any]) -> bytes:
    flat, kind = values.reshape(-1), values.dtype.kind
    if kind in "SUO":
        texts = (each if isinstance(each, bytes) else str(each).encode() for each in flat.tolist())
        return message((_BYTES, message(*repeated(1, texts))))
    if kind == "f":
        return message((_FLOATS, message((1, flat.astype("<f4").tobytes()))))
    if kind in "iub":
        return message((_INTEGERS, message((1, varints(flat.tolist())))))
    raise ModelError(
        f"--output_proto_filepath: the output {name} is {np.dtype(values.dtype).name}, which a "
        "tf.Example cannot hold. Use --output_filepath."
    )
