"""Reads models from files, or builds zoo models by name."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from litegpu.errors import ModelError, closest
from litegpu.files import MODEL_IDENTIFIER, read_model
from litegpu.zoo.registry import PREFIX, is_zoo_name, load, names


def resolve_model(
    model: str | os.PathLike[str], advice: str = "Give the path of a .tflite file or `zoo:NAME`."
) -> bytes:
    """Return the bytes of a .tflite model, by its path or by the name of a zoo model.

    The path may name a bundle with one model, or a member of a bundle: `bundle.task:member.tflite`.

    `advice` is the last sentence of errors about invalid arguments, which states the arguments that
    the caller accepts.

    Raises:
        ModelError: The file is missing, cannot be read, is not a .tflite model, or is a bundle
            with several; or the argument is not a path.
        OptionsError: An unknown zoo model, see `load`.
    """
    if isinstance(model, str) and is_zoo_name(model):
        return load(model)
    given: Any = model
    if not isinstance(given, str | os.PathLike):
        kind = type(given).__name__
        raise ModelError(f"A model's path or zoo name is text, not {kind}. {advice}")
    path = Path(model)
    try:
        data = read_model(model)
    except FileNotFoundError as error:
        raise ModelError(f"Model file '{path}' does not exist. {_advice(path)}") from error
    except OSError as error:
        raise ModelError(
            f"Model file '{path}' cannot be read: {error.strerror}. {_advice(path)}"
        ) from error
    if data[4:8] != MODEL_IDENTIFIER:
        raise ModelError(
            f"'{path}' is not a TensorFlow Lite model: its bytes 4 to 8 are {data[4:8]!r} and "
            f"should be {MODEL_IDENTIFIER!r} (the file has {len(data)} bytes). "
            "Convert the model to .tflite, or copy or download it again."
        )
    return data


def model_bytes(model: str | os.PathLike[str] | bytes | bytearray | memoryview) -> bytes:
    """Return the bytes of a model, which may be a path or bytes. Raises as `resolve_model` does."""
    if isinstance(model, (bytes, bytearray, memoryview)):
        return bytes(model)
    return resolve_model(
        model, "Give the path of a .tflite file, `zoo:NAME`, or the bytes of a .tflite file."
    )


def _advice(path: Path) -> str:
    if path.parent == Path() and (found := closest(f"{PREFIX}{path}", names())):
        return f"Did you mean '{found}'?"
    return f"Check the path, or use a built-in model such as '{names()[0]}'."
