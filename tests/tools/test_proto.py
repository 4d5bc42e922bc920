"""Messages by names and numbers: their bytes, and their text."""

from __future__ import annotations

import numpy as np

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
