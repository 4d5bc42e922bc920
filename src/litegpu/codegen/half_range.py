"""What kernels note about the values that they round to half, and how they tell it."""

from __future__ import annotations

from collections.abc import Sequence

HALF_MAX = 65504.0
"""The largest finite float16."""
HALF_TINY = 2.0**-10
"""Where no element of a value is larger, half may lose what counts.

Below 2^-14 it has steps of 2^-24, which are 2^-14 of this: beside such an element the rounding of
those that have no digits of their own left is no more than that of the element itself.
"""

RANGE = "range_words"
"""The name of the buffer in which a kernel tells the range of what it rounds to half."""
RANGE_WORDS = 3
"""Its 32-bit words for each tensor that the kernel rounds.

They are 0 before a run. They become 1 when a work item has noted what is too large for half, what
is below HALF_TINY, and what is neither.
"""


def note_range(name: str, value: str, bounded: bool = False) -> str:
    """Statement that notes the largest finite magnitude of a float4 that tensor `name` gets.

    `bounded` values are not infinite.
    """
    size = f"LANE_MAX(ABS4({value}))" if bounded else f"FINITE_SIZE4({value})"
    return f"noted_{name} = LARGER(noted_{name}, {size});"


def telling_range(body: str, names: Sequence[str]) -> str:
    """Return the body of a kernel that notes, with what declares the notes and tells them.

    A word is read before it is written: most items find that another one was faster.
    """
    declared = "".join(f"    float noted_{name} = 0.0f;\n" for name in names)
    told = (
        f"""\
    if (noted_{name} > 0.0f) {{
        const int kind = noted_{name} > {HALF_MAX}f ? 0 : noted_{name} < {HALF_TINY}f ? 1 : 2;
        if ({RANGE}[{place * RANGE_WORDS} + kind] == 0u) {RANGE}[{place * RANGE_WORDS} + kind] = 1u;
    }}
"""
        for place, name in enumerate(names)
    )
    return "".join((declared, body, *told))
