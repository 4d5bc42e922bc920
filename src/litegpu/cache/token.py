"""A token for a model, equal to the token of TensorFlow Lite's serialization."""

from __future__ import annotations

import os

from litegpu.errors import ModelError, missing_dependency
from litegpu.files import read_model


def model_token(model: str | os.PathLike[str] | bytes) -> str:
    """Return the token of a model's path or bytes: FarmHash's Fingerprint64 as a decimal number.

    TensorFlow Lite's helper `StrFingerprint` returns the same number on every machine. The cache
    always finds files by a hash that includes the weights. A token only makes file names readable,
    and separates the files of several applications in one folder. The token of a model in a bundle
    depends only on the model's bytes.

    Raises ModelError if the file cannot be read or has several models, MissingDependencyError
    without the package cityhash.

    >>> model_token(b"")
    '11160318154034397263'
    """
    try:
        import farmhash
    except ImportError as error:
        raise missing_dependency("cityhash", "tools", "model_token") from error
    if isinstance(model, bytes):
        return str(farmhash.Fingerprint64(model))
    try:
        return str(farmhash.Fingerprint64(read_model(model)))
    except OSError as error:
        raise ModelError(
            f"The model file '{os.fspath(model)}' cannot be read: {error.strerror}. Give the path "
            "of a .tflite file, or its bytes."
        ) from error
