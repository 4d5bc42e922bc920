"""What kernels note about the values that they round to half, and how they tell it."""

from __future__ import annotations

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
"""Its 32-bit words.

They are 0 before a run. They become 1 when a work item has noted what is too large for half, what
is below HALF_TINY, and what is neither.
"""


def note_range(value: str, bounded: bool = False) -> str:
    """Statement that notes the largest finite magnitude of a float4 that becomes half.

    `bounded` values are not infinite.
    """
    size = f"LANE_MAX(ABS4({value}))" if bounded else f"FINITE_SIZE4({value})"
    return f"noted = LARGER(noted, {size});"


def telling_range(body: str) -> str:
    """Return the body of a kernel that notes, with what declares the notes and tells them.

    A word is read before it is written: most items find that another one was faster.
    """
    return f"""\
    float noted = 0.0f;
{body}    if (noted > 0.0f) {{
        const int kind = noted > {HALF_MAX}f ? 0 : noted < {HALF_TINY}f ? 1 : 2;
        if ({RANGE}[kind] == 0u) {RANGE}[kind] = 1u;
    }}
"""
