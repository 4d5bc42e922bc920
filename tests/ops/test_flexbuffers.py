"""The reader of FlexBuffers: valid maps, and rejection of everything else."""

from __future__ import annotations

from typing import Any

import pytest
from flatbuffers import flexbuffers as writer
from hypothesis import given, settings
from hypothesis import strategies as st

from hostile.nesting import in_itself
from litegpu.ops.common.flexbuffers import read_map

NUMBERS = st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, width=32) | st.booleans()
_KEYS = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=9)
PLAIN = NUMBERS | st.text(max_size=9) | st.none()
VALUES = PLAIN | st.lists(PLAIN, max_size=4) | st.dictionaries(_KEYS, PLAIN, max_size=4)


@settings(max_examples=100)
@given(st.dictionaries(_KEYS, VALUES, max_size=6))
def test_reads_what_was_written(options: dict[str, Any]) -> None:
    assert read_map(bytes(writer.Dumps(options))) == options


def test_reads_vectors_of_one_type() -> None:
    builder = writer.Builder()
    with builder.Map():
        builder.Key("sizes")
        builder.TypedVectorFromElements([3, -400, 70000])
        builder.Key("scales")
        builder.TypedVectorFromElements([0.5, 2.0])
        builder.Key("pair")
        builder.FixedTypedVectorFromElements([5, 6])
        builder.Key("far")
        builder.IndirectFloat(0.25)
        builder.Key("large")
        builder.IndirectInt(-7)
    assert read_map(bytes(builder.Finish())) == {
        "sizes": [3, -400, 70000],
        "scales": [0.5, 2.0],
        "pair": [5, 6],
        "far": 0.25,
        "large": -7,
    }


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "0 bytes are no FlexBuffer"),
        (bytes(writer.Dumps([1, 2])), "the FlexBuffer holds a list, not a map"),
        (b"\x09\x24\x01", "the FlexBuffer points outside of its bytes"),
        (b"\x01\x00\x28\x02\x28\x01", "the FlexBuffer is nested too deeply"),
        (b"\x01\x01\x64\x01", "type 25 in a FlexBuffer is not known"),
        (b"\x01\x0c\x01", "a float of 1 bytes in a FlexBuffer"),
        (b"\x01\x01\x01\x04\x03", "a number of 3 bytes in a FlexBuffer"),
    ],
)
def test_says_what_is_wrong(data: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_map(data)


# Few bytes that stand for many values


def test_vectors_in_vectors() -> None:
    assert read_map(in_itself(2, 1)) == {"k": [[], []]}
    assert read_map(in_itself(1, 3)) == {"k": [[[[]]]]}


@pytest.mark.parametrize(("size", "nesting"), [(100, 7), (2000, 2), (12, 7)])
def test_bytes_that_stand_for_billions_of_values_are_refused(size: int, nesting: int) -> None:
    """2.2 KB were enough to be busy for ever."""
    data = in_itself(size, nesting)
    with pytest.raises(ValueError, match=r"more values than bytes, or too many|too often"):
        read_map(data)


def test_a_text_that_is_named_again_and_again_is_refused() -> None:
    builder = writer.Builder(share_strings=True)
    with builder.Map():
        builder.Key("names")
        with builder.Vector():
            for _ in range(100):
                builder.String("x" * 1000)
    with pytest.raises(ValueError, match="reads the same bytes too often"):
        read_map(bytes(builder.Finish()))


def test_shared_keys_and_texts_are_read() -> None:
    builder = writer.Builder(share_strings=True, share_keys=True)
    with builder.Map():
        builder.Key("each")
        with builder.Vector():
            for _ in range(20):
                with builder.Map():
                    builder.Key("type")
                    builder.String("bilinear")
    assert read_map(bytes(builder.Finish())) == {"each": [{"type": "bilinear"}] * 20}


@settings(max_examples=100)
@given(st.binary(max_size=40))
def test_any_bytes_are_a_map_or_an_error(data: bytes) -> None:
    try:
        found = read_map(data)
    except ValueError:
        return
    assert isinstance(found, dict)
