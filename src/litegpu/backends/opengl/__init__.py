"""The OpenGL backend, which uses compute shaders and glcontext."""
