"""OpenGL compute shaders, through glcontext."""
