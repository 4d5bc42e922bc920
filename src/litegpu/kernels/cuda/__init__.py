"""Kernels for NVIDIA's GPUs, a folder for each family: its Python beside its template."""
