"""The CUDA backend, which uses the CUDA driver and NVRTC."""
