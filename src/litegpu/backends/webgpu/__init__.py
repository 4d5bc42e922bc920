"""WebGPU, through wgpu."""
