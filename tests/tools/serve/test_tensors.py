"""Requests of the v2 protocol as arrays, and errors of invalid requests."""

from __future__ import annotations

import json
import math
import struct
from typing import Any

import numpy as np
import pytest

from litegpu.errors import RequestError
from litegpu.tools.serve.tensors import (
    DTYPES,
    Call,
    Output,
    answer_of,
    parse_call,
    wanted_outputs,
)


def parsed(found: Any, binary: bytes = b"") -> Call:
    text = found if isinstance(found, bytes) else json.dumps(found).encode()
    header = str(len(text)) if binary else None
    return parse_call(memoryview(text + binary), header)


def one(**fields: Any) -> dict[str, Any]:
    return {"inputs": [{"name": "x", "datatype": "FP32", "shape": [2], "data": [1, 2], **fields}]}


def sized(size: Any, **fields: Any) -> dict[str, Any]:
    found = one(parameters={"binary_data_size": size}, **fields)
    if "data" not in fields:
        del found["inputs"][0]["data"]
    return found


@pytest.mark.parametrize("name", DTYPES)
def test_arrays_of_every_type_come_and_go(name: str) -> None:
    dtype = DTYPES[name]
    limits = np.iinfo(dtype) if dtype.kind in "iu" else None
    values = (
        [limits.min, limits.max, 1] if limits else [0, 1, 1] if name == "BOOL" else [-1, 0.5, 2]
    )
    array = np.array([values], dtype)
    as_json = {"datatype": name, "shape": [1, 3]}
    for data in (array.tolist(), array.ravel().tolist()):
        found = parsed(one(**as_json, data=data)).inputs[0].data
        assert isinstance(found, np.ndarray) and found.dtype == dtype
        np.testing.assert_array_equal(found, array)
    found = parsed(sized(array.nbytes, **as_json), array.tobytes()).inputs[0].data
    np.testing.assert_array_equal(found, array)
    for binary in (False, True):
        body, length = answer_of({}, [Output("y", binary)], {"y": array})
        output = json.loads(body[:length])["outputs"][0]
        assert (output["datatype"], output["shape"]) == (name, [1, 3])
        stored = body[length:] if binary else None
        back = np.frombuffer(stored, dtype) if stored else np.array(output["data"], dtype)
        np.testing.assert_array_equal(back, array.ravel())


def test_texts_and_files_are_bytes() -> None:
    as_bytes = {"datatype": "BYTES", "shape": [2]}
    assert parsed(one(**as_bytes, data=["a", "ü"])).inputs[0].data == [b"a", "ü".encode()]
    assert parsed(one(**as_bytes, data=[["a"], ["b"]])).inputs[0].data == [b"a", b"b"]
    encoded = one(**as_bytes, data=["AP8=", ""], parameters={"content_type": "base64"})
    assert parsed(encoded).inputs[0].data == [b"\0\xff", b""]
    data = b"".join(struct.pack("<I", len(each)) + each for each in (b"\0\xff", b""))
    assert parsed(sized(len(data), **as_bytes), data).inputs[0].data == [b"\0\xff", b""]


def test_parameters_of_a_request() -> None:
    call = parsed(
        {
            **one(),
            "id": "7",
            "outputs": [{"name": "y", "parameters": {"binary_data": False}}, {"name": "z"}],
            "parameters": {"binary_data_output": True, "signature": "s", "timeout": 1500000},
        }
    )
    assert (call.id, call.signature, call.timeout) == ("7", "s", 1.5)
    assert call.outputs == [Output("y", False), Output("z", True)]
    assert wanted_outputs(parsed(one()), ["y"]) == [Output("y", False)]
    with pytest.raises(RequestError, match=r"no output 'z'\. Did you mean 'z1'"):
        wanted_outputs(call, ["y", "z1"])


def test_numbers_that_json_lacks_are_null() -> None:
    values = np.array([1, math.nan, math.inf, -math.inf], np.float32)
    body, _ = answer_of({}, [Output("y", False)], {"y": values})
    assert json.loads(body)["outputs"][0]["data"] == [1.0, None, None, None]


def test_large_unsigned_numbers_mix_with_small_ones() -> None:
    found = parsed(one(datatype="UINT64", data=[1, 2**64 - 1])).inputs[0].data
    assert isinstance(found, np.ndarray) and found.tolist() == [1, 2**64 - 1]


DEEP = b'{"inputs":' + b"[" * 100_000
REJECTED: dict[str, tuple[Any, bytes, str]] = {
    "not JSON": (b"{", b"", "The body is not valid JSON: Expecting"),
    "not text": (b'{"a":"\xff"}', b"", "The body is not valid JSON: 'utf-8'"),
    "too deep": (DEEP, b"", "The body is not valid JSON: too many levels"),
    "a long number": (b'{"a":' + b"1" * 5000 + b"}", b"", "The body is not valid JSON: Exceeds"),
    "a list": (b"[]", b"", "The body is JSON, but no object"),
    "a key twice": (b'{"id":"a","id":"b"}', b"", "^The JSON has the key 'id' twice"),
    "no inputs": ({}, b"", "'inputs' is missing"),
    "inputs of numbers": ({"inputs": [1]}, b"", "'inputs' is missing, or is not a list of objects"),
    "an input twice": ({"inputs": one()["inputs"] * 2}, b"", "Input 'x' is given twice"),
    "an output twice": (
        {**one(), "outputs": [{"name": "y"}] * 2},
        b"",
        "Output 'y' is requested twice",
    ),
    "no name": (one(name=""), b"", "An input has no 'name'"),
    "a long name": (one(name="a" * 1025), b"", "no 'name' of up to 1024 characters"),
    "no type": (one(datatype=None), b"", "has the datatype null. Use one of BOOL,"),
    "an unknown type": (one(datatype="FP8" * 90), b"", r'datatype "FP8FP8.*\.\.\.\. Use'),
    "a negative size": (one(shape=[-2]), b"", r"has the shape \[-2\]. Give a list of up to 8"),
    "a size of true": (one(shape=[True, 2]), b"", r"has the shape \[true, 2\]"),
    "many sizes": (one(shape=[1] * 9), b"", "Give a list of up to 8"),
    "a shape of text": (one(shape="2"), b"", 'has the shape "2"'),
    "a huge size": (one(shape=[2**31]), b"", "whole numbers from 0 to 2147483647"),
    "too few": (one(shape=[10**9]), b"", "has 2 elements, and 1000000000 by its shape"),
    "nothing of a huge shape": (
        one(shape=[0] + [2**31 - 1] * 7, data=[]),
        b"",
        "cannot have the shape",
    ),
    "no data": (one(data=None), b"", "Input 'x' has no 'data'"),
    "texts": (one(data=["1", "2"]), b"", "is FP32, and its 'data' has other elements"),
    "lists of several lengths": (one(data=[[1], [1, 2]]), b"", "lists of different lengths"),
    "null": (one(data=[None, 1]), b"", "is FP32, and its 'data' has other elements"),
    "floats for integers": (one(datatype="INT8", data=[0.5, 1]), b"", "is INT8, and its 'data'"),
    "floats for large ones": (one(datatype="UINT64", data=[0.5, 1]), b"", "is UINT64, and its"),
    "integers beyond": (one(datatype="INT8", data=[0, 200]), b"", "numbers from 0 to 200. Use"),
    "negative ones": (one(datatype="UINT64", data=[-1, 1]), b"", "numbers from -1 to 1. Use"),
    "floats beyond": (one(datatype="FP16", data=[0, 1e6]), b"", "has numbers beyond its range"),
    "numbers for bytes": (one(datatype="BYTES"), b"", "is BYTES, and its 'data' has other"),
    "no base64": (
        one(datatype="BYTES", data=["?", ""], parameters={"content_type": "base64"}),
        b"",
        "an element that is not base64: .*. Encode it again",
    ),
    "an unknown content": (
        one(datatype="BYTES", data=["a", "b"], parameters={"content_type": "str"}),
        b"",
        "has the content_type 'str'. Use base64",
    ),
    "parameters of text": (one(parameters="a"), b"", "Input 'x' has 'parameters' that are no"),
    "shared memory": (
        one(parameters={"shared_memory_region": "a"}),
        b"",
        "Input 'x' has the parameter 'shared_memory_region', which is not supported",
    ),
    "a sequence": (
        {**one(), "parameters": {"sequence_id": 4}},
        b"",
        "The request has the parameter",
    ),
    "an id of a number": ({**one(), "id": 4}, b"", "'id' is 4. Give a text"),
    "no flag": (
        {**one(), "parameters": {"binary_data_output": 1}},
        b"",
        "'binary_data_output' is 1. Use true or false",
    ),
    "no timeout": ({**one(), "parameters": {"timeout": 0}}, b"", "'timeout' is 0. Give micro"),
    "bytes that are too long": (sized(9), b"12345678", "binary_data_size 9, and 8 bytes remain"),
    "bytes of a negative length": (sized(-1), b"12345678", "binary_data_size -1, and 8 bytes"),
    "bytes of a text's length": (sized("8"), b"12345678", 'binary_data_size "8", and 8 bytes'),
    "too many bytes": (sized(8), b"123456789", "1 bytes follow the data of the inputs"),
    "too few bytes": (sized(4), b"1234", r"FP32 of the shape \[2\], 8 bytes, and has 4"),
    "bytes and data": (sized(8, data=[1, 2]), b"12345678", "has 'data' and 'binary_data_size'"),
    "bytes that are no bool": (sized(2, datatype="BOOL"), b"\1\2", "other bytes than 0 and 1"),
    "a text beyond its data": (
        sized(5, datatype="BYTES"),
        b"\xff\xff\xff\xffa",
        "an element that ends beyond its data, at byte 0 of 5",
    ),
    "half a length": (
        sized(6, datatype="BYTES"),
        b"\0\0\0\0\0\0",
        "an element that ends beyond its data, at byte 4 of 6",
    ),
    "too few texts": (sized(4, datatype="BYTES"), b"\0\0\0\0", "has 1 elements, and 2 by its"),
}


@pytest.mark.parametrize("what", REJECTED)
def test_what_is_wrong_with_a_request_is_said(what: str) -> None:
    found, binary, message = REJECTED[what]
    with pytest.raises(RequestError, match=message) as rejected:
        parsed(found, binary)
    assert rejected.value.status == 400


@pytest.mark.parametrize("header", ["-1", "1e3", "", "99", "²", "9" * 30])
def test_lengths_of_json_are_checked(header: str) -> None:
    with pytest.raises(RequestError, match="Inference-Header-Content-Length is '"):
        parse_call(memoryview(b"{}"), header)
