"""Containers of results, and functions on them."""

from litegpu.tasks.components import containers, utils

__all__ = ["containers", "utils"]
