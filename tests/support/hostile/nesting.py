"""Options of custom operations: few bytes that represent many values."""

from __future__ import annotations


def in_itself(size: int, nesting: int) -> bytes:
    """Return a map whose vectors hold, `size` times each, the vector before them."""
    kind = 10 << 2 | 1
    data = bytearray(b"\0\0")  # an empty vector: just its size
    target = len(data)
    for _ in range(nesting):
        data += size.to_bytes(2, "little")
        start = len(data)
        for index in range(size):
            data += (start + 2 * index - target).to_bytes(2, "little")
        data += bytes([kind] * size) + b"\0" * (size % 2)
        target = start
    data += b"k\0" + (1).to_bytes(2, "little")
    keys = len(data)
    data += (keys - (keys - 4)).to_bytes(2, "little")
    data += (len(data) - keys).to_bytes(2, "little") + (2).to_bytes(2, "little")
    data += (1).to_bytes(2, "little")
    values = len(data)
    data += (values - target).to_bytes(2, "little") + bytes([kind])
    return bytes(data + b"\0" + (len(data) + 1 - values).to_bytes(2, "little") + b"\x25\x02")
