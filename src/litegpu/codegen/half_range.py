"""Range words, in which kernels record whether the values that they round to half fit."""

from __future__ import annotations

from collections.abc import Sequence

HALF_MAX = 65504.0
"""The largest finite float16."""
HALF_TINY = 2.0**-10
"""If all elements of a value have a smaller magnitude, underflow in half may lose significant
values.

Below 2^-14, half has steps of 2^-24, which are 2^-14 of HALF_TINY. Relative to an element of
magnitude HALF_TINY, the error of a value that becomes zero is thus no larger than half's usual
rounding error.
"""

RANGE = "range_words"
"""Name of the buffer in which a kernel records the range of the values that it rounds to half."""
RANGE_WORDS = 3
"""Number of 32-bit words for each tensor that the kernel rounds.

The range words are 0 before a run. A work item sets the first word to 1 if it stored a value that
is too large for half, the second word for a value below HALF_TINY, and the third word for a value
that fits.
"""

_MANY = 1 << 18
"""Number of elements above which a check of a sample is sufficient."""
_TELLERS = 32
"""Number of work groups that report fitting values, and of items in each (a warp of a GPU)."""


def note_range(name: str, value: str, bounded: bool = False, elements: int = 0) -> str:
    """Return a statement that records the largest finite magnitude of a float4 stored to `name`."""
    return note_size(name, size_to_note(value, bounded, elements))


def size_to_note(value: str, bounded: bool, elements: int) -> str:
    """Return the text of an expression: the largest finite magnitude of the float4 `value`.

    `bounded` values are finite and not too large for half. In tensors of many `elements`, kernels
    check only a quarter of the `bounded` values, which is enough to detect underflow.
    """
    if bounded and elements >= _MANY:
        return f"ABS4({value}).x"
    return f"LANE_MAX(ABS4({value}))" if bounded else f"FINITE_SIZE4({value})"


def note_size(name: str, size: str) -> str:
    """Return a statement that records a finite magnitude of tensor `name`."""
    return f"noted_{name} = LARGER(noted_{name}, {size});"


def with_range_stores(body: str, names: Sequence[str], groups: int) -> str:
    """Return a kernel body with the declarations of its range variables and their stores.

    Only some of the work `groups` report that values fit: if all groups reported, nearly all would
    wait for each other. On an H200, 1000 stores to one address took 2 µs.
    """
    declared = "".join(f"    float noted_{name} = 0.0f;\n" for name in names)
    among = 1 << max(groups // _TELLERS, 1).bit_length() - 1
    some = f"(LOCAL_X < {_TELLERS} && (GROUP_X + GROUP_Y) % {among} == 0)"
    reports = (
        f"""\
    if (noted_{name} > 0.0f) {{
        const int kind = noted_{name} > {HALF_MAX}f ? 0 : noted_{name} < {HALF_TINY}f ? 1 : 2;
        if (kind < 2 || {some}) {RANGE}[{number * RANGE_WORDS} + kind] = 1u;
    }}
"""
        for number, name in enumerate(names)
    )
    return "".join((declared, body, *reports))
