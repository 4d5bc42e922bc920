"""Integer functions whose text is the same in CUDA C++ and OpenCL C."""

from __future__ import annotations

POWER = """\
int power(int a, int b, bool wraps) {
    const int size = a == -2147483647 - 1 ? -1 : a < 0 ? -a : a;
    const int most = 2147483647 / max(size, 1);
    unsigned int found = 1u, square = (unsigned int)a;
    bool fits = size >= 0 || b < 1 || wraps;
    const int times = size == 0 || size == 1 ? min(b, 1 + ((b - 1) & 1)) : min(b, 32);
    for (int i = 0; i < (wraps ? 31 : times); ++i) {
        fits = fits && (wraps || ((int)found <= most && (int)found >= -most));
        if (wraps ? ((b >> i) & 1) == 1 : fits) found *= square;
        if (wraps) square *= square;
    }
    return fits ? (int)found : -2147483647 - 1;
}
"""
"""A function that returns a^b; powers beyond 32 bits wrap around if `wraps` is true.

Without `wraps`, a power beyond 32 bits is the least integer, as on an x86 CPU.
"""
