"""The WebGPU backend, which uses wgpu."""
