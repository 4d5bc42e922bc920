"""Kernels for NVIDIA's GPUs, a folder for each family, with its Python and its template."""
