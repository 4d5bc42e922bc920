"""Encodes and decodes tensors of KServe's protocol, as JSON or binary data."""

from __future__ import annotations

import json
import math
import struct
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from litegpu.compiled_model.signatures import Tensor
from litegpu.errors import RequestError, did_you_mean

Array = npt.NDArray[Any]
_Data = TypeVar("_Data", Array, list[bytes])

DTYPES: Mapping[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    **{f"UINT{bits}": np.dtype(f"u{bits // 8}") for bits in (8, 16, 32, 64)},
    **{f"INT{bits}": np.dtype(f"i{bits // 8}") for bits in (8, 16, 32, 64)},
    **{f"FP{bits}": np.dtype(f"f{bits // 8}") for bits in (16, 32, 64)},
}
BYTES = "BYTES"
"""The protocol's datatype of texts and of picture files."""
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_LENGTH = struct.Struct("<I")
_MAX_AXES = 8
_LONGEST = 1024
"""Maximum length of a name in characters."""
_LARGEST = 2**31 - 1
"""The maximum size of a dimension in the runtime."""
_UNSUPPORTED = (
    *("classification", "priority", "sequence_id", "sequence_start", "sequence_end"),
    *("shared_memory_region", "shared_memory_offset", "shared_memory_byte_size"),
)
"""Unsupported parameters, which the server rejects because they would change the answer."""


@dataclass(frozen=True, slots=True)
class Given:
    """An input tensor of a request."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: Array | list[bytes]
    """The elements in this shape; the elements of BYTES are a flat list."""


@dataclass(frozen=True, slots=True)
class Output:
    """A requested output."""

    name: str
    binary: bool


@dataclass(frozen=True, slots=True)
class Call:
    """A request for an inference."""

    inputs: list[Given]
    outputs: list[Output] | None
    """The requested outputs; None for all."""
    binary: bool
    """Whether outputs that are not listed in the request are returned as binary data."""
    id: str | None
    signature: str | None
    timeout: float | None
    """The timeout in seconds."""


def datatype(dtype: np.dtype[Any]) -> str:
    """Return the protocol's name of a type."""
    return _NAMES.get(dtype, BYTES)


def parse_json(body: memoryview) -> dict[str, Any]:
    """Parse the JSON object in a body.

    Raises RequestError for malformed JSON, for repeated keys, and for other values than an object.
    """
    try:
        found = json.loads(bytes(body), object_pairs_hook=_object)
    except RequestError:
        raise
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError is a ValueError
        why = "too many levels" if isinstance(error, RecursionError) else str(error)
        raise RequestError(f"The body is not valid JSON: {why}. Send one object.") from error
    if not isinstance(found, dict):
        raise RequestError("The body is JSON, but no object. Send one object.")
    return found


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = _repeated(name for name, _ in pairs)
        raise RequestError(
            f"The JSON has the key '{twice[:40]}' twice in one object. Give it once."
        )
    return found


def _repeated(names: Iterable[str]) -> str:
    """Return a repeated name, or an empty text."""
    return next((name for name, count in Counter(names).items() if count > 1), "")


def parse_call(body: memoryview, header: str | None) -> Call:
    """Parse a request's body; `header` is the value of Inference-Header-Content-Length, if any.

    Raises RequestError for an invalid request.
    """
    end = _header_length(header, len(body))
    return call_of(parse_json(body[:end]), body[end:])


def _header_length(header: str | None, most: int) -> int:
    if header is None:
        return most
    if not (header.isascii() and header.isdecimal() and len(header) < 20 and int(header) <= most):
        raise RequestError(
            f"Inference-Header-Content-Length is '{header[:40]}', and the body has {most} bytes. "
            "Give the number of bytes of the JSON at the beginning of the body."
        )
    return int(header)


def call_of(found: Mapping[str, Any], binary: memoryview) -> Call:
    """Parse a request from its JSON and the binary data after it. Raises RequestError."""
    parameters = _parameters(found, "The request")
    inputs: list[Given] = []
    rest = binary
    for each in _objects(found, "inputs"):
        given, rest = _input(each, rest)
        inputs.append(given)
    if twice := _repeated(each.name for each in inputs):
        raise RequestError(f"Input '{twice}' is given twice. Give it once.")
    if len(rest):
        raise RequestError(
            f"{len(rest)} bytes follow the data of the inputs. Give each binary input its "
            "'binary_data_size'."
        )
    all_binary = _flag(parameters, "binary_data_output")
    outputs = None
    if found.get("outputs") is not None:
        outputs = [_output(each, all_binary) for each in _objects(found, "outputs")]
        if twice := _repeated(each.name for each in outputs):
            raise RequestError(f"Output '{twice}' is requested twice. Name it once.")
    return Call(
        inputs,
        outputs or None,
        all_binary,
        _text(found, "id"),
        _text(parameters, "signature"),
        _seconds(parameters.get("timeout")),
    )


def _objects(found: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    items = found.get(name)
    if not isinstance(items, list) or not all(isinstance(each, dict) for each in items):
        raise RequestError(
            f"'{name}' is missing, or is not a list of objects. Give one for each tensor."
        )
    return items


def _parameters(found: Mapping[str, Any], what: str) -> Mapping[str, Any]:
    parameters = found.get("parameters", {})
    if not isinstance(parameters, dict):
        raise RequestError(f"{what} has 'parameters' that are no object. Give one, or none.")
    for name in _UNSUPPORTED:
        if parameters.get(name):
            raise RequestError(f"{what} has the parameter '{name}', which is not supported.")
    return parameters


def _flag(parameters: Mapping[str, Any], name: str) -> bool:
    value = parameters.get(name, False)
    if not isinstance(value, bool):
        raise RequestError(f"The parameter '{name}' is {_shown(value)}. Use true or false.")
    return value


def _text(found: Mapping[str, Any], name: str) -> str | None:
    value = found.get(name)
    if value is not None and not (isinstance(value, str) and len(value) <= _LONGEST):
        raise RequestError(
            f"'{name}' is {_shown(value)}. Give a text of up to {_LONGEST} characters."
        )
    return value


def _seconds(value: Any) -> float | None:
    """Return the parameter `timeout`, which is in microseconds, in seconds."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 1 << 63:
        raise RequestError(
            f"The parameter 'timeout' is {_shown(value)}. Give microseconds, a whole number from 1."
        )
    return value / 1e6


def _shown(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else f"{text[:60]}..."


def _output(found: Mapping[str, Any], binary: bool) -> Output:
    name = _name(found, "output")
    parameters = _parameters(found, f"Output '{name}'")
    return Output(name, _flag({"binary_data": binary, **parameters}, "binary_data"))


def _name(found: Mapping[str, Any], what: str) -> str:
    name = found.get("name")
    if not isinstance(name, str) or not 0 < len(name) <= _LONGEST:
        raise RequestError(f"An {what} has no 'name' of up to {_LONGEST} characters. Give one.")
    return name


def _input(found: Mapping[str, Any], binary: memoryview) -> tuple[Given, memoryview]:
    """Parse an input; also return the binary data of the following inputs."""
    name = _name(found, "input")
    kind, shape = found.get("datatype"), found.get("shape")
    if not isinstance(kind, str) or kind not in (*DTYPES, BYTES):
        raise RequestError(
            f"Input '{name}' has the datatype {_shown(kind)}. "
            f"Use one of {', '.join((*DTYPES, BYTES))}."
        )
    if (
        not isinstance(shape, list)
        or len(shape) > _MAX_AXES
        or not all(type(size) is int and 0 <= size <= _LARGEST for size in shape)
    ):
        raise RequestError(
            f"Input '{name}' has the shape {_shown(shape)}. Give a list of up to {_MAX_AXES} "
            f"whole numbers from 0 to {_LARGEST}."
        )
    parameters = _parameters(found, f"Input '{name}'")
    size = parameters.get("binary_data_size")
    if size is None:
        base64 = _text(parameters, "content_type")
        return Given(name, kind, tuple(shape), _json_data(name, kind, shape, found, base64)), binary
    if "data" in found:
        raise RequestError(f"Input '{name}' has 'data' and 'binary_data_size'. Give one of them.")
    if type(size) is not int or not 0 <= size <= len(binary):
        raise RequestError(
            f"Input '{name}' has the binary_data_size {_shown(size)}, and {len(binary)} bytes "
            "remain in the body. Give the bytes of its data."
        )
    return Given(name, kind, tuple(shape), _binary_data(name, kind, shape, binary[:size])), binary[
        size:
    ]


def _json_data(
    name: str, kind: str, shape: Sequence[int], found: Mapping[str, Any], content: str | None
) -> Array | list[bytes]:
    data = found.get("data")
    if not isinstance(data, list):
        raise RequestError(f"Input '{name}' has no 'data'. Give a list of its elements.")
    count = math.prod(shape)
    if kind == BYTES:
        return _checked_count(name, count, _texts(name, data, content))
    try:
        array = np.asarray(data)
        if kind == "UINT64" and array.dtype.kind in "fO":  # NumPy mixes int64 and uint64 to these
            array = _large(data)
    except (ValueError, OverflowError, RecursionError) as error:
        raise _not_numbers(name, kind) from error
    dtype = DTYPES[kind]
    flat = _checked_count(name, count, array.reshape(-1))
    if array.size:
        _check_values(name, kind, dtype, array)
    with np.errstate(over="ignore"):
        stored = flat.astype(dtype)
    if dtype.kind == "f" and not np.array_equal(np.isinf(stored), np.isinf(flat)):
        raise RequestError(f"Input '{name}' is {kind}, and has numbers beyond its range.")
    return _shaped(name, shape, stored)


def _shaped(name: str, shape: Sequence[int], flat: Array) -> Array:
    """Reshape an array. Raises RequestError if the number of elements differs."""
    try:
        return flat.reshape(shape)
    except ValueError as error:  # an axis of 0, and others that are too large together
        raise RequestError(f"Input '{name}' cannot have the shape {[*shape]}: {error}.") from error


def _large(data: list[Any]) -> Array:
    array = np.array(data, dtype=object)
    if not all(type(each) is int for each in array.flat):
        raise ValueError("not all are whole numbers")
    return array.astype(np.uint64)


def _not_numbers(name: str, kind: str) -> RequestError:
    return RequestError(
        f"Input '{name}' is {kind}, and its 'data' has other elements, or lists of different "
        "lengths. Give its elements as one list, or as nested lists."
    )


def _check_values(name: str, kind: str, dtype: np.dtype[Any], array: Array) -> None:
    """Raise RequestError if a number is invalid for the datatype."""
    fitting = {"b": "b", "u": "iu", "i": "iu", "f": "iuf"}[dtype.kind]
    if array.dtype.kind not in fitting:
        raise _not_numbers(name, kind)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        low, high = int(array.min()), int(array.max())
        if low < limits.min or high > limits.max:
            raise RequestError(
                f"Input '{name}' is {kind}, and has numbers from {low} to {high}. Use numbers from "
                f"{limits.min} to {limits.max}."
            )


def _texts(name: str, data: list[Any], content: str | None) -> list[bytes]:
    """Return the elements of BYTES; the parameter `content_type` may specify base64."""
    import base64
    import binascii

    found: list[bytes] = []
    for each in data:
        if isinstance(each, list):
            found += _texts(name, each, content)
        elif not isinstance(each, str):
            raise _not_numbers(name, BYTES)
        elif content == "base64":
            try:
                found.append(base64.b64decode(each, validate=True))
            except (binascii.Error, ValueError) as error:
                raise RequestError(
                    f"Input '{name}' has an element that is not base64: {error}. Encode it again."
                ) from error
        elif content is None:
            found.append(each.encode("utf-8", "surrogatepass"))
        else:
            raise RequestError(
                f"Input '{name}' has the content_type '{content[:40]}'. Use base64, or leave it "
                "out for texts."
            )
    return found


def _binary_data(
    name: str, kind: str, shape: Sequence[int], data: memoryview
) -> Array | list[bytes]:
    count = math.prod(shape)
    if kind == BYTES:
        return _checked_count(name, count, _elements(name, data))
    dtype = DTYPES[kind]
    if len(data) != count * dtype.itemsize:
        raise RequestError(
            f"Input '{name}' is {kind} of the shape {_shown(shape)}, {count * dtype.itemsize} "
            f"bytes, and has {len(data)}. Give the bytes of all elements, little-endian."
        )
    array = np.frombuffer(data, dtype.newbyteorder("<"))
    if kind == "BOOL" and array.view(np.uint8).max(initial=0) > 1:
        raise RequestError(f"Input '{name}' is BOOL, and has other bytes than 0 and 1.")
    return _shaped(name, shape, array.astype(dtype, copy=False))


def _elements(name: str, data: memoryview) -> list[bytes]:
    """Parse the elements of BYTES from binary data, each after its length (4 bytes)."""
    found, begin = [], 0
    while begin < len(data):
        start = begin + _LENGTH.size
        end = start + (_LENGTH.unpack_from(data, begin)[0] if start <= len(data) else 0)
        if start > len(data) or end > len(data):
            raise RequestError(
                f"Input '{name}' has an element that ends beyond its data, at byte {begin} of "
                f"{len(data)}. Precede each element by its length, 4 bytes, little-endian."
            )
        found.append(bytes(data[start:end]))
        begin = end
    return found


def _checked_count(name: str, count: int, data: _Data) -> _Data:
    if len(data) != count:
        raise RequestError(
            f"Input '{name}' has {len(data)} elements, and {count} by its shape. Give all elements."
        )
    return data


def wanted_outputs(call: Call, names: Sequence[str]) -> list[Output]:
    """Return the requested outputs. Raises RequestError for an unknown name."""
    for each in call.outputs or ():
        if each.name not in names:
            raise RequestError(
                f"The model has no output '{each.name}'.{did_you_mean(each.name, names)}"
            )
    return call.outputs or [Output(name, call.binary) for name in names]


def answer_of(
    start: Mapping[str, Any], wanted: Sequence[Output], found: Mapping[str, Array]
) -> tuple[bytes, int | None]:
    """Return the body of an answer, and the length of its JSON if binary data follow.

    NaN and infinity are null in the JSON.
    """
    outputs, binary = [], []
    for each in wanted:
        array = found[each.name]
        output: dict[str, Any] = {
            "name": each.name,
            "datatype": datatype(array.dtype),
            "shape": [*array.shape],
        }
        if each.binary:
            data = raw_bytes(array)
            output["parameters"] = {"binary_data_size": len(data)}
            binary.append(data)
        else:
            output["data"] = _listed(array)
        outputs.append(output)
    text = json.dumps({**start, "outputs": outputs}, allow_nan=False).encode()
    return b"".join([text, *binary]), len(text) if binary else None


def raw_bytes(array: Array) -> bytes:
    """Return the elements of an array as binary data, little-endian."""
    return array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()


def _listed(array: Array) -> list[Any]:
    flat = array.reshape(-1)
    if array.dtype.kind == "f" and not (finite := np.isfinite(flat)).all():
        return [each if valid else None for each, valid in zip(flat.tolist(), finite, strict=True)]
    return list(flat.tolist())


def described(tensor: Tensor, batched: bool) -> dict[str, Any]:
    """Return the metadata of a tensor; -1 marks a dynamic size."""
    shape = [-1, *tensor.shape[1:]] if batched else [*tensor.stated]
    return {"name": tensor.key, "datatype": datatype(tensor.dtype), "shape": shape}
