"""The OpenCL backend, which uses pyopencl."""
