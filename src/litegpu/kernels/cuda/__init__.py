"""Kernels for NVIDIA GPUs: one folder per family, with its Python code and template."""
