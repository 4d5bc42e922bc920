"""Damages the bytes of whole files, like a broken disk, a bad download or an attacker."""

from __future__ import annotations

import functools
from collections.abc import Mapping

import numpy as np

from fuzzing import mutations

_NUMBERS = (0, 1, 2, 4, 255, 1 << 15, (1 << 31) - 1, 1 << 31, (1 << 32) - 1)
_DATA_SHARE = 0.05
"""How much of the damage falls on the data of constants, which most bytes of a file are."""


@functools.lru_cache(maxsize=8)
def structure(content: bytes) -> tuple[tuple[int, int], ...]:
    """Return the ranges of a file that are no data of constants."""
    positions, at = [], 0
    buffers = mutations.parse(content).buffers
    for data in sorted((bytes(b.data) for b in buffers if b.data is not None), key=len)[::-1]:
        found = content.find(data) if len(data) >= 64 else -1
        if found >= 0:
            positions.append((found, found + len(data)))
    ranges = []
    for start, end in sorted(set(positions)):
        if start > at:
            ranges.append((at, start))
        at = max(at, end)
    return (*ranges, (at, len(content))) if at < len(content) else tuple(ranges)


def damage(content: bytes, random: np.random.Generator) -> tuple[bytes, list[str]]:
    """Return a damaged copy of a model and what was done; mostly a few bytes, at times parts."""
    stored = bytearray(content)
    done = []
    for _ in range(int(random.choice((1, 1, 2, 3, 8)))):
        position = _place(content, random) % max(len(stored), 1)
        done.append(f"{_damage_at(stored, position, random)} at {position}")
    return bytes(stored), done


def damage_bytes(content: bytes, random: np.random.Generator) -> bytes:
    """Return a damaged copy of anything."""
    stored = bytearray(content)
    for _ in range(int(random.choice((1, 1, 2, 3, 8)))):
        _damage_at(stored, int(random.integers(max(len(stored), 1))), random)
    return bytes(stored)


_KINDS: Mapping[str, float] = {
    **{"bit": 0.3, "byte": 0.25, "word": 0.3, "cut": 0.03, "swap": 0.06, "splice": 0.06},
}


def _place(content: bytes, random: np.random.Generator) -> int:
    if random.random() < _DATA_SHARE:
        return int(random.integers(len(content)))
    ranges = structure(content)
    number = int(random.integers(sum(end - start for start, end in ranges)))
    for start, end in ranges:
        if number < end - start:
            return start + number
        number -= end - start
    return 0


def _damage_at(stored: bytearray, position: int, random: np.random.Generator) -> str:
    """Damage what lies at a place; return how."""
    name = str(random.choice(list(_KINDS), p=[*_KINDS.values()]))
    if not stored:
        return "nothing"
    size = int(random.integers(1, 64))
    other = int(random.integers(len(stored)))
    if name == "bit":
        stored[position] ^= 1 << int(random.integers(8))
    elif name == "byte":
        stored[position] = int(random.integers(256))
    elif name == "word":
        start = position // 4 * 4
        stored[start : start + 4] = int(random.choice(_NUMBERS)).to_bytes(4, "little")
    elif name == "cut":
        del stored[position:]
    elif name == "swap":
        first, second = (
            bytes(stored[position : position + size]),
            bytes(stored[other : other + size]),
        )
        stored[position : position + len(second)], stored[other : other + len(first)] = (
            second,
            first,
        )
    else:
        stored[position : position + size] = stored[other : other + size]
    return name
