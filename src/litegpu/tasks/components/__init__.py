"""Containers of results, options of classifiers, and functions on results."""

from litegpu.tasks.components import containers, processors, utils

__all__ = ["containers", "processors", "utils"]
