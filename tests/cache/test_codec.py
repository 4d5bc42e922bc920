"""Encoding of plain data as JSON; the decoder rejects data of wrong types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from litegpu.cache.codec import decode, encode
from litegpu.graph import DType


@dataclass(frozen=True)
class Inner:
    number: int
    flag: bool


@dataclass(frozen=True)
class Outer:
    name: str
    inner: Inner | None
    pair: tuple[int, str]
    many: tuple[Inner, ...]
    kinds: Mapping[DType, int]


OUTER = Outer("\ud800 a", None, (-1, ""), (Inner(2**61, True), Inner(0, False)), {DType.INT8: 3})


def test_what_is_written_is_read() -> None:
    assert decode(Outer, encode(OUTER)) == OUTER


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "Expecting value"),
        (b"[1,true,2]", "list where a list of another length was expected"),
        (b"{}", "dict where a list of another length was expected"),
        (b'["1",true]', "1 where a number was expected"),
        (b"[true,true]", "True where a number was expected"),
        (b"[1.0,true]", "1.0 is not an integer"),
        (b"[NaN,true]", "NaN is not an integer"),
        (b"[4611686018427387904,true]", "4611686018427387904 where a number was expected"),
        (b"[1,1]", "int where bool was expected"),
        (b"[" * 100_000, "nested too deeply"),
        (b"\xff", "utf-8"),
    ],
)
def test_anything_else_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        decode(Inner, data)


def test_keys_occur_once_and_enums_are_known() -> None:
    good = encode(OUTER)
    with pytest.raises(ValueError, match="a key occurs twice"):
        decode(Outer, good.replace(b'[["int8",3]]', b'[["int8",3],["int8",4]]'))
    with pytest.raises(ValueError, match="'int9' is not a valid DType"):
        decode(Outer, good.replace(b"int8", b"int9"))


@dataclass(frozen=True)
class Unknown:
    anything: complex


def test_types_that_no_file_has_are_errors_of_the_program() -> None:
    with pytest.raises(TypeError, match="complex cannot be stored in files"):
        encode((1, 2j))
    other: Any = Unknown
    with pytest.raises(TypeError, match="'complex'> cannot be read from files"):
        decode(other, b"[1]")
