"""Kernel templates in the portable dialect, and the families of kernels made of them."""
