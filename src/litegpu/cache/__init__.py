"""What compiling a partition gave, for the next interpreter and for the next process."""

from litegpu.cache.improving import wait_for
from litegpu.cache.partitions import Wanted, find_or_compile
from litegpu.cache.store import CacheFolder

__all__ = ["CacheFolder", "Wanted", "find_or_compile", "wait_for"]
