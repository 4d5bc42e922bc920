"""Exact quantized ops, which reproduce the integer arithmetic and rounding of the CPU kernels.

A real number is scale * (stored integer - zero point). Normalization converts products and
quotients of scales to integer multipliers on the host. Kernels only multiply and shift.
"""
