"""Protocol buffer messages by names and numbers: their bytes, and their text."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from litegpu.files.wire import fields
from litegpu.tools.proto import Named, Proto
from wire_reader import parsed

MESSAGE = Proto(
    (
        (1, "name", 'a "b"\\\n\té'),
        (2, "inner", Proto(((1, "kind", Named(5, "STRING")), (2, "ids", (1, 300))))),
        (2, "inner", Proto(((2, "ids", ()),))),
        (3, "ratio", np.float32(0.1)),
        (4, "third", np.float32(1 / 3)),
        (5, "exact", 0.5),
        (6, "count", -1),
    )
)


def test_bytes() -> None:
    found = [*parsed(MESSAGE.encoded())]
    assert [number for number, _ in found] == [1, 2, 2, 3, 4, 5, 6]
    assert found[0][1].decode() == 'a "b"\\\n\té'
    assert [*parsed(found[1][1])] == [(1, 5), (2, b"\x01\xac\x02")]
    assert (found[2][1], found[5][1]) == (b"", 0.5)


def test_text() -> None:
    assert MESSAGE.text() == (
        'name: "a \\"b\\"\\\\\\n\\t\\303\\251"\n'
        "inner {\n  kind: STRING\n  ids: 1\n  ids: 300\n}\n"
        "inner {\n}\n"
        "ratio: 0.1\nthird: 0.333333343\nexact: 0.5\ncount: -1\n"
    )


def protobuf(module: str) -> Any:
    return pytest.importorskip(f"google.protobuf.{module}", reason="protobuf is not installed")


def compiled_by_protobuf() -> Any:
    """Return the class that protobuf has of such messages."""
    descriptor_pb2, descriptor_pool, message_factory = map(
        protobuf, ("descriptor_pb2", "descriptor_pool", "message_factory")
    )
    file = descriptor_pb2.FileDescriptorProto(name="litegpu_test.proto", package="litegpu_test")
    kind = file.enum_type.add(name="Kind")
    kind.value.add(name="UNKNOWN", number=0)
    kind.value.add(name="STRING", number=5)
    of_field = descriptor_pb2.FieldDescriptorProto
    repeated, optional = of_field.LABEL_REPEATED, of_field.LABEL_OPTIONAL
    inner, outer = file.message_type.add(name="Inner"), file.message_type.add(name="Outer")
    inner.field.add(
        name="kind",
        number=1,
        type=of_field.TYPE_ENUM,
        label=optional,
        type_name=".litegpu_test.Kind",
    )
    ids = inner.field.add(name="ids", number=2, type=of_field.TYPE_INT32, label=repeated)
    ids.options.packed = True
    types = {
        **{"name": of_field.TYPE_STRING, "inner": of_field.TYPE_MESSAGE},
        **{"ratio": of_field.TYPE_FLOAT, "third": of_field.TYPE_FLOAT},
        **{"exact": of_field.TYPE_DOUBLE, "count": of_field.TYPE_INT64},
    }
    for number, (name, kind_of) in enumerate(types.items(), 1):
        field = outer.field.add(name=name, number=number, type=kind_of, label=optional)
        if name == "inner":
            field.label, field.type_name = repeated, ".litegpu_test.Inner"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("litegpu_test.Outer"))


def test_protobuf_reads_the_same_from_bytes_and_text() -> None:
    outer = compiled_by_protobuf()
    found = outer.FromString(MESSAGE.encoded())
    assert (found.name, found.exact, found.count) == ('a "b"\\\n\té', 0.5, -1)
    assert (np.float32(found.ratio), np.float32(found.third)) == (
        np.float32(0.1),
        np.float32(1 / 3),
    )
    assert [(each.kind, [*each.ids]) for each in found.inner] == [(5, [1, 300]), (0, [])]
    assert protobuf("text_format").Parse(MESSAGE.text(), outer()) == found


def test_what_protobuf_writes_is_read() -> None:
    content = compiled_by_protobuf().FromString(MESSAGE.encoded()).SerializeToString()
    assert [*fields(content)] == [*fields(MESSAGE.encoded())]
