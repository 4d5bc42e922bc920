"""CUDA, through the driver and NVRTC."""
