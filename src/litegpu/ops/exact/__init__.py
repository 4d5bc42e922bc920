"""Quantized operations as the CPU computes them: in integers, rounded as its kernels round.

A real number is scale * (stored integer - zero point). What is real here is done on the host when
the node is normalized; kernels multiply by integers and shift.
"""
