"""OpenCL, through pyopencl."""
