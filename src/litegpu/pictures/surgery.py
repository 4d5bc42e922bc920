"""Adds preprocessing to a model, whose new input accepts a picture's bytes."""

from __future__ import annotations

import math
import numbers
import os
import struct
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from litegpu.errors import ModelError, OptionsError, did_you_mean
from litegpu.files import MODEL_IDENTIFIER
from litegpu.graph.ir import Quantization
from litegpu.pictures.formats import COLORS, FORMATS, NV12, RESIZES
from litegpu.pictures.front import OPEN, Input, Picture, front_of
from litegpu.zoo import model_bytes, objects, schema
from litegpu.zoo.prepend import prepended

ANY = "any"
Scale = float | Sequence[float]
"""One number for all channels of a picture, or one number per channel."""
Size = tuple[int, int] | str | None
"""Height and width, "any", or None for the size of the model's input."""

_TYPES = ("float32", "uint8", "int8")
_DEFAULT_SCALE = 127.5


def with_picture_input(
    model: bytes | str | os.PathLike[str],
    input_format: str = "rgb8",
    *,
    size: Size = None,
    mean: Scale | None = None,
    std: Scale | None = None,
    resize: str | None = None,
    colors: str | None = None,
    input: int | str = 0,
) -> bytes:
    """Return a .tflite model whose input is a picture's bytes and that includes the preprocessing.

    The new input, uint8 [N, height, width, C], has the position and the name of the old one.
    Standard ops compute the old input from the new one: they select channels, resize, and compute
    `(pixel - mean) / std`. For a quantized input, the ops also quantize the result. The new model
    runs in any interpreter, and the other nodes are unchanged::

        content = with_picture_input("model.tflite", "rgba8", size="any", mean=0, std=255)
        interpreter = Interpreter(model_content=content)

    Args:
        model: the bytes of a .tflite file, its path, or zoo:NAME.
        input_format: "rgb8", "bgr8", "rgba8", "bgra8" (alpha is ignored), "gray8", or "nv12": [N,
            height * 3 / 2, width, 1], rows of Y, then rows of alternating U and V.
        size: height and width of pictures, if they differ from the input's; "any" makes them
            dynamic for `resize_tensor_input`.
        mean: the number subtracted from pixels (0 to 255), or one number per channel. `mean`
            requires `std`. Without `mean` and `std`, float inputs are from -1 to 1 (127.5 for
            both), and quantized inputs store the byte of a pixel (minus 128 for int8).
        std: the divisor of `pixel - mean`.
        resize: "bilinear" (the default: no half-pixel centers, as in TensorFlow Lite's evaluation
            tasks), "bilinear_half_pixel" (half-pixel centers, as in OpenCV) or "nearest".
        colors: the color space of nv12: "bt601" (the default), "bt709", or these with "_full" for
            Y from 0 to 255.
        input: the index or the name of the input; a name is that of a tensor or of a signature's
            input.

    Raises:
        ModelError: the file does not exist, or its input cannot take pictures of this format.
        OptionsError: an argument has an unsupported value.
        MissingDependencyError: ai-edge-litert or flatbuffers is not installed.
    """
    content = model_bytes(model)
    parsed = _parsed(content)
    position = _position(parsed, input)
    target = _target(parsed, position)
    given_format = _known(FORMATS, input_format, "input_format")
    if colors is not None and input_format != NV12:
        raise OptionsError(
            f"colors='{colors}' applies only to nv12, not to {input_format}. Leave `colors` out."
        )
    known_colors = _known(COLORS, colors or "bt601", "colors")
    known_resize = _known(RESIZES, resize or "bilinear", "resize")
    picture_size = _size(size, target, input_format)
    if resize is not None and target.has_size_of(picture_size):
        raise OptionsError(
            f"resize='{resize}' has no effect: the input, {_text(target)}, takes pictures "
            "without resizing. Give another size= or leave resize out."
        )
    if target.shape[3] == 1 and input_format != "gray8":
        raise ModelError(
            f"The input takes one channel ({_text(target)}), and {input_format} has colours. "
            "Use gray8."
        )
    means, stds = _scales(mean, std, target)
    picture = Picture(
        picture_size,
        given_format,
        known_resize,
        means,
        stds,
        known_colors if input_format == NV12 else None,
    )
    front = front_of(target, picture)
    return content if front is None else prepended(content, parsed, position, front)


def _parsed(content: bytes) -> Any:
    try:
        parsed = objects.parse(content)
        if content[4:8] == MODEL_IDENTIFIER and parsed.subgraphs:
            return parsed
        why = "the model has no graph" if content[4:8] == MODEL_IDENTIFIER else "it is none"
    except (struct.error, ValueError, IndexError, TypeError, AttributeError) as error:
        why = f"the model is damaged ({error})"
    raise ModelError(f"The model cannot be read as a .tflite file: {why}. Convert it again.")


def _position(model: Any, wanted: int | str) -> int:
    graph = model.subgraphs[0]
    tensors = [int(t) for t in graph.inputs]
    if hasattr(wanted, "__index__"):
        if 0 <= int(wanted) < len(tensors):
            return int(wanted)
        raise OptionsError(f"input={wanted}: the model has {len(tensors)} inputs, from 0 on.")
    names = {(graph.tensors[t].name or b"").decode(errors="replace"): t for t in tensors}
    for signature in model.signatureDefs or ():
        for entry in signature.inputs or () if signature.subgraphIndex == 0 else ():
            names.setdefault(entry.name.decode(errors="replace"), int(entry.tensorIndex))
    return tensors.index(_known(names, wanted, "input"))


def _target(model: Any, position: int) -> Input:
    graph = model.subgraphs[0]
    tensor = graph.tensors[int(graph.inputs[position])]
    name = (tensor.name or b"").decode(errors="replace")
    signature = tensor.shapeSignature
    shape = [int(n) for n in (tensor.shape if signature is None else signature)]
    if len(shape) != 4 or shape[3] not in (1, 3, 4):
        raise ModelError(
            f"The input '{name}' is {shape}, no picture. Choose another input, of "
            "[N, height, width, channels] with 1, 3 or 4 channels."
        )
    dtypes = {number: each.lower() for each, number in schema.members("TensorType").items()}
    dtype = dtypes.get(tensor.type, f"of type {tensor.type}")
    if dtype not in _TYPES:
        raise ModelError(
            f"The input '{name}' is {dtype}; pictures can be converted to {', '.join(_TYPES)}. "
            "Convert the model with an input of one of these."
        )
    n, height, width, channels = shape
    found = None if dtype == "float32" else _quantization(tensor.quantization, name)
    return Input((n, height, width, channels), dtype, found)


def _quantization(table: Any, name: str) -> Quantization:
    scales = [] if table is None or table.scale is None else [float(each) for each in table.scale]
    zeros = [] if table is None or table.zeroPoint is None else [int(z) for z in table.zeroPoint]
    if len(scales) != 1 or len(zeros) != 1 or not scales[0] > 0:
        raise ModelError(
            f"The input '{name}' holds integers without one scale and zero point, so the real "
            "numbers that they represent are unknown. Convert the model with its quantization."
        )
    return Quantization((scales[0],), (zeros[0],))


def _known(table: Any, word: Any, what: str) -> Any:
    if not isinstance(word, str) or word not in table:
        raise OptionsError(f"Unknown {what} {word!r}.{did_you_mean(str(word), table)}")
    return table[word]


def _size(size: Size, target: Input, input_format: str) -> tuple[int, int]:
    own = target.shape[1:3]
    if isinstance(size, str) and size != ANY:
        raise OptionsError(f"size='{size}' must be a height and a width, or '{ANY}'.")
    if size is None:
        found = own
    elif isinstance(size, str):
        found = (OPEN, OPEN)
    else:
        found = _pair(size)
    if input_format != NV12:
        return found
    if OPEN in found:
        raise OptionsError(
            "nv12 needs a fixed size, which determines where U and V begin. Give size=(height, "
            "width)."
        )
    if found[0] % 2 or found[1] % 2:
        raise OptionsError(
            f"nv12 needs even heights and widths, not {found[0]}×{found[1]}: give such a size=."
        )
    return found


def _pair(size: Sequence[int]) -> tuple[int, int]:
    try:
        pair = tuple(map(int, size))
        if len(pair) == 2 and pair == tuple(size) and min(pair) > 0:
            return pair
    except (TypeError, ValueError, OverflowError):  # of tuple() and int()
        pass
    raise OptionsError(
        f"size={size!r} is not a height and a width. Give two whole numbers above 0."
    )


def _scales(mean: Scale | None, std: Scale | None, target: Input) -> Any:
    """Return mean and std, with one entry or one per channel."""
    if (mean is None) != (std is None):
        raise OptionsError("mean and std belong together: give both, or none.")
    if mean is None or std is None:
        stored = target.stored
        if stored is None:
            return _array(_DEFAULT_SCALE), _array(_DEFAULT_SCALE)
        return _array(stored.zero_point[0]), np.float32(1) / _array(stored.scale[0])
    for what, value in (("mean", mean), ("std", std)):
        entries = list(value) if isinstance(value, Iterable) else [value]
        wrong = [x for x in entries if not _is_finite(x) or (what == "std" and x == 0)]
        if len(entries) not in (1, target.colors) or wrong:
            but = " other than 0" if what == "std" else ""
            raise OptionsError(
                f"{what}={value!r}: give a finite number{but}, or one for each of {target.colors} "
                "channels."
            )
    return _array(mean), _array(std)


def _is_finite(entry: Any) -> bool:
    return isinstance(entry, numbers.Real) and math.isfinite(entry)


def _array(value: Any) -> NDArray[np.float32]:
    return np.atleast_1d(np.asarray(value, np.float32))


def _text(target: Input) -> str:
    return f"[{', '.join('any' if n == OPEN else str(n) for n in target.shape)}]"
