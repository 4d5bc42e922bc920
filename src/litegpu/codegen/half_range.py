"""What kernels note about the values that they round to half, and how they tell it."""

from __future__ import annotations

from collections.abc import Sequence

HALF_MAX = 65504.0
"""The largest finite float16."""
HALF_TINY = 2.0**-10
"""Where no element of a value is larger, half may lose what counts.

Below 2^-14 it has steps of 2^-24, which are 2^-14 of this: relative to such an element the rounding
error of the values that become zero is no larger than that of the element itself.
"""

RANGE = "range_words"
"""The name of the buffer in which a kernel tells the range of what it rounds to half."""
RANGE_WORDS = 3
"""Its 32-bit words for each tensor that the kernel rounds.

They are 0 before a run. They become 1 when a work item has noted what is too large for half, what
is below HALF_TINY, and what is neither.
"""

_MANY = 1 << 18
"""Elements of which a part is as good as all."""
_TELLERS = 32
"""Work groups that are enough to tell, and of each so many items: one warp of a GPU."""


def note_range(name: str, value: str, bounded: bool = False, elements: int = 0) -> str:
    """Statement that notes the largest finite magnitude of a float4 that tensor `name` gets."""
    return note_size(name, size_to_note(value, bounded, elements))


def size_to_note(value: str, bounded: bool, elements: int) -> str:
    """Text of the largest finite magnitude of a float4 of a tensor of so many `elements`.

    `bounded` values are not infinite, and not too large. That all of them are tiny a quarter of
    many elements tells as well.
    """
    if bounded and elements >= _MANY:
        return f"ABS4({value}).x"
    return f"LANE_MAX(ABS4({value}))" if bounded else f"FINITE_SIZE4({value})"


def note_size(name: str, size: str) -> str:
    """Statement that notes a finite magnitude among what tensor `name` gets."""
    return f"noted_{name} = LARGER(noted_{name}, {size});"


def telling_range(body: str, names: Sequence[str], groups: int) -> str:
    """Return the body of a kernel that notes, with what declares the notes and tells them.

    Of its work `groups` only some tell that there is something which fits: nearly all could, and
    would wait for each other (1000 stores to one place took 2 µs on an H200).
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
