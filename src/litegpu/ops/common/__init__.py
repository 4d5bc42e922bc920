"""Code shared by several operations."""
