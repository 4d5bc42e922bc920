"""Kernel templates in the portable dialect, and their families."""
