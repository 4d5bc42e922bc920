"""Exact quantized operations: the CPU kernels' integer arithmetic, including their rounding.

A real number is scale * (stored integer - zero point). Factors made of scales are converted to
integer multipliers on the host, when a node is normalized; kernels only multiply and shift.
"""
