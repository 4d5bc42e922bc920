"""Compiles a graph for a device: storage layout, kernel selection, memory plan, program."""
