"""A client of `litegpu serve --grpc_port`: python grpc_client.py PORT.

It writes and reads the messages of KServe's protocol byte by byte, by the numbers of their fields.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

from wire_reader import parsed

CODE = grpc.StatusCode


def field(number: int, content: bytes | str) -> bytes:
    data = content.encode() if isinstance(content, str) else content
    return varint(number << 3 | 2) + varint(len(data)) + data


def varint(value: int) -> bytes:
    found = b""
    while value > 0x7F:
        found, value = found + bytes([value & 0x7F | 0x80]), value >> 7
    return found + bytes([value])


def tensor(shape: list[int], contents: bytes = b"", kind: str = "FP32") -> bytes:
    sizes = b"".join(map(varint, shape))
    return field(1, "input") + field(2, kind) + field(3, sizes) + contents


def row(value: float) -> bytes:
    return struct.pack("<4f", *[value] * 4)


def parameter(key: str, value: bytes) -> bytes:
    return field(4, field(1, key) + field(2, value))


def rejected(call: Callable[[bytes], Any], request: bytes) -> tuple[Any, str]:
    try:
        call(request)
    except grpc.RpcError as error:
        return error.code(), error.details()
    raise AssertionError("there was no error")


def main(port: str) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:

        def method(name: str) -> Callable[[bytes], bytes]:
            found: Callable[[bytes], bytes] = channel.unary_unary(
                f"/inference.GRPCInferenceService/{name}"
            )
            return found

        plain = field(1, "plain")
        assert method("ServerLive")(b"") == method("ServerReady")(b"") == b"\x08\x01"
        assert method("ModelReady")(plain) == b"\x08\x01"
        assert dict(parsed(method("ServerMetadata")(b"")))[1] == b"litegpu"
        found = dict(parsed(method("ModelMetadata")(plain)))
        assert (found[1], found[2], found[3]) == (b"plain", b"1", b"tflite")
        described = dict(parsed(found[4]))
        assert (described[1], described[2]) == (b"input", b"FP32")

        infer = method("ModelInfer")

        def client(number: int) -> None:
            if number % 2:
                inputs = field(5, tensor([1, 4])) + field(7, row(number))
            else:
                inputs = field(5, tensor([1, 4], field(5, field(6, row(number)))))
            answer = dict(parsed(infer(plain + field(3, "id") + inputs)))
            assert (answer[1], answer[2], answer[3]) == (b"plain", b"1", b"id")
            wanted = struct.pack("<4f", *(number + each for each in range(4)))
            assert answer[6] == wanted, number

        with ThreadPoolExecutor(16) as clients:
            assert len([*clients.map(client, range(160))]) == 160

        good = field(5, tensor([1, 4])) + field(7, row(1))
        for request, code, message in (
            (field(1, "plane") + good, CODE.NOT_FOUND, "Did you mean 'plain'?"),
            (plain + field(2, "7") + good, CODE.NOT_FOUND, "has no version '7'"),
            (plain + good + field(7, b""), CODE.INVALID_ARGUMENT, "1 inputs, and 2 raw_input_"),
            (plain + field(5, tensor([1, 4])), CODE.INVALID_ARGUMENT, "has 0 elements, and 4"),
            (
                plain + field(5, tensor([1], field(5, field(8, b"a")), "BYTES")),
                CODE.INVALID_ARGUMENT,
                "was given BYTES, which only inputs for pictures take",
            ),
            (
                plain + parameter("sequence_id", b"\x10\x04") + good,
                CODE.INVALID_ARGUMENT,
                "the parameter 'sequence_id', which is not supported",
            ),
            (
                plain + parameter("timeout", b"\x10\x01") + good,
                CODE.DEADLINE_EXCEEDED,
                "within its timeout of 1e-06 seconds",
            ),
        ):
            status, details = rejected(infer, request)
            assert status == code and message in details, (status, details)
        assert rejected(method("RepositoryIndex"), b"")[0] == CODE.UNIMPLEMENTED


if __name__ == "__main__":
    main(*sys.argv[1:])
