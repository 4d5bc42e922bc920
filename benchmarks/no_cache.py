"""Disables the cache of compiled partitions in a benchmark, unless LITEGPU_CACHE is set.

Starts are cold then, and every invoke runs optimized kernels: quick starts need a cache.
"""

import os

os.environ.setdefault("LITEGPU_CACHE", "0")
