"""The inputs of benchmark_model: TensorFlow Lite's random values, value ranges, or files."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from litegpu.errors import FileError, ModelError, OptionsError
from litegpu.tools.lines import warn

_SENTENCE = b"a sentence of some words, the same for every string of the model"
_SEED = 5489
"""The C++ standard's default seed of a Mersenne Twister."""
_RANGES = {
    **dict.fromkeys(("int32", "int64", "uint32", "uint64"), (0, 99)),
    **{"uint8": (0, 254), "int8": (-127, 127), "bool": (0, 1), "int16": (0, 0), "uint16": (0, 0)},
}


@dataclass(frozen=True)
class Layer:
    """The settings of one model input from the flags."""

    name: str
    shape: tuple[int, ...]
    low_high: tuple[int, int] | None = None
    file: str = ""


def parse_layers(names: str, shapes: str, ranges: str, files: str) -> list[Layer]:
    """Parse the flags of inputs; return an empty list if the flags are empty.

    Raises:
        OptionsError: a flag is malformed, or the flags do not match each other.
    """
    known = [name for name in names.split(",") if name]
    sizes = [text for text in shapes.split(":") if text]
    if len(known) != len(sizes):
        raise OptionsError(
            f"The number of items in --input_layer_shape ({shapes}, with {len(sizes)} items) must "
            f"match the number of items in --input_layer ({names}, with {len(known)} items). For "
            "example --input_layer=input1,input2 --input_layer_shape=1,224,224,4:1,20"
        )
    layers = {name: Layer(name, _shape(text)) for name, text in zip(known, sizes, strict=True)}
    for item in filter(None, ranges.split(":")):
        parts = item.split(",")
        layer = _known("input_layer_value_range", ranges, parts[0], layers)
        layers[layer.name] = replace(layer, low_high=_low_high(item, parts[1:]))
    colon = "\0"  # "::" is a ":" in a name or a path
    for item in filter(None, files.replace("::", colon).split(",")):
        name, separator, path = (part.replace(colon, ":") for part in item.partition(":"))
        layer = _known("input_layer_value_files", files, name, layers)
        if not separator or not path:
            raise OptionsError(
                f"--input_layer_value_files={files}: '{item.replace(colon, '::')}' names no file. "
                "Write name:path, with ',' between two of them and '::' for a ':' of a path."
            )
        if layer.low_high:
            warn(f"The file of input {name} takes precedence over its value range.")
        layers[name] = replace(layer, file=path)
    return list(layers.values())


def _shape(text: str) -> tuple[int, ...]:
    try:
        sizes = tuple(int(size) for size in text.split(","))
    except ValueError:
        sizes = (-1,)
    if min(sizes) < 0:
        raise OptionsError(
            f"--input_layer_shape: '{text}' is not a shape. Any unknown sizes in the shapes (-1's) "
            "must be replaced with the size you want to benchmark with, such as 1,224,224,3."
        )
    return sizes


def _low_high(item: str, parts: Sequence[str]) -> tuple[int, int]:
    try:
        low, high = (int(part) for part in parts)
    except ValueError:
        low, high = 0, -1
    if not -(2**31) <= low <= high < 2**31:
        raise OptionsError(
            f"--input_layer_value_range: '{item}' is not name,low,high with whole numbers of 32 "
            "bits, the lower one first. For example input1,1,2:input2,0,254"
        )
    return low, high


def _known(flag: str, text: str, name: str, layers: dict[str, Layer]) -> Layer:
    if name not in layers:
        raise OptionsError(
            f"--{flag}={text}: '{name}' is not among --input_layer={','.join(layers)}. Add the "
            "input to that flag, with its shape."
        )
    return layers[name]


def resize_inputs(target: Any, layers: Sequence[Layer]) -> None:
    """Set the shapes of the interpreter's inputs from the flags, if specified.

    Raises:
        OptionsError: the inputs or ranks in the flags differ from the model's.
    """
    details = target.get_input_details()
    if layers and len(layers) != len(details):
        raise OptionsError(
            f"--input_layer names {len(layers)} inputs, the model has {len(details)}: "
            f"{', '.join(detail['name'] for detail in details)}. Name all of them."
        )
    for index, (layer, detail) in enumerate(zip(layers, details, strict=False)):
        if layer.name != detail["name"]:
            warn(f"Tensor # {index} is named {detail['name']} but flags call it {layer.name}")
        rank = len(detail["shape"])
        if len(layer.shape) != rank:
            raise OptionsError(f"Input tensor #{index} should have {rank} dimensions!")
        if layer.shape != tuple(detail["shape"]):
            target.resize_tensor_input(detail["index"], layer.shape)


def input_values(details: Sequence[dict[str, Any]], layers: Sequence[Layer]) -> list[NDArray[Any]]:
    """Return a value for each input: from a file, or from one stream of random numbers.

    Raises:
        ModelError: an input has an unsupported type.
        FileError: a file cannot be read, or its size differs from the tensor's.
    """
    stream = Stream()
    by_place = dict(enumerate(layers))
    found = []
    for index, detail in enumerate(details):
        layer = by_place.get(index)
        if layer and layer.file:
            found.append(_from_file(detail, layer.file))
        else:
            found.append(_drawn(detail, layer.low_high if layer else None, stream))
    return found


def _drawn(detail: dict[str, Any], low_high: tuple[int, int] | None, stream: Stream) -> Any:
    kind, shape = np.dtype(detail["dtype"]), tuple(int(size) for size in detail["shape"])
    count = math.prod(shape)
    if low_high and kind.name not in _RANGES:
        warn(f"The value range of input {detail['name']} is not used: its type is {kind.name}.")
    if kind.name in _RANGES:
        values: Any = stream.integers(count, *(low_high or _RANGES[kind.name]))
    elif kind.kind == "f":
        values = stream.reals(count, wide=kind.itemsize > 4)
    elif kind.kind == "c":
        parts = stream.reals(2 * count, wide=kind.itemsize > 8)
        values = parts[0::2] + 1j * parts[1::2]
    elif kind.kind in "OSU":
        return np.full(shape, _SENTENCE)
    else:
        raise ModelError(
            f"Don't know how to populate tensor {detail['name']} of type {kind.name}. "
            "Use a model whose inputs are numbers or strings."
        )
    return values.astype(kind).reshape(shape)


def _from_file(detail: dict[str, Any], path: str) -> NDArray[Any]:
    kind, shape = np.dtype(detail["dtype"]), tuple(int(size) for size in detail["shape"])
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise FileError(
            f"Failed to read the input_layer_value_file {path}: {error.strerror}. "
            "Name a file that exists and is readable."
        ) from error
    if kind.kind in "OSU":
        parts = content.removesuffix(b"\0").split(b"\0")
        if len(parts) != math.prod(shape):
            raise _size(path, f"{len(parts)} strings", detail, f"{math.prod(shape)} strings")
        return np.array(parts).reshape(shape)
    size = math.prod(shape) * kind.itemsize
    if len(content) != size:
        raise _size(path, f"{len(content)} bytes", detail, f"{size} bytes")
    return np.frombuffer(content, kind).reshape(shape)


def _size(path: str, has: str, detail: dict[str, Any], needs: str) -> FileError:
    return FileError(
        f"The size of {path} is {has}, but the tensor {detail['name']} needs {needs}. "
        "Write the raw values of the whole tensor."
    )


class Stream:
    """The random numbers of C++'s mt19937 with libstdc++'s distributions."""

    def __init__(self) -> None:
        self._random = np.random.RandomState(_SEED)

    def words(self, count: int) -> NDArray[np.uint64]:
        """Return the next 32-bit words."""
        return np.frombuffer(self._random.bytes(4 * count), "<u4").astype(np.uint64)

    def reals(self, count: int, wide: bool) -> NDArray[Any]:
        """Return numbers in [-0.5, 0.5) in single precision or, if `wide`, in double precision."""
        kind: Any = np.float64 if wide else np.float32
        words = self.words(2 * count if wide else count).astype(kind)
        if wide:
            parts = (words[0::2] + words[1::2] * kind(2**32)) * kind(2.0**-64)
        else:
            parts = words * kind(2.0**-32)
        result: NDArray[Any] = np.minimum(parts, np.nextafter(kind(1), kind(0))) - kind(0.5)
        return result

    def integers(self, count: int, low: int, high: int) -> NDArray[np.int64]:
        """Return uniformly distributed integers from `low` to `high`.

        An integer is the upper half of the product of a random word and the size of the range. The
        method skips words whose product has a lower half below a threshold, so that all integers
        are equally likely.
        """
        span = high - low + 1
        threshold = (2**32 - span) % span
        found: list[NDArray[np.uint64]] = []
        while (missing := count - sum(map(len, found))) > 0:
            products = self.words(missing) * np.uint64(span)
            found.append(products[(products & np.uint64(2**32 - 1)) >= threshold] >> np.uint64(32))
        return np.concatenate([*found, np.empty(0, np.uint64)]).astype(np.int64) + low
