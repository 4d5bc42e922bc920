"""What compiling a partition gave, kept in a folder for the next process."""

from litegpu.cache.partitions import CachedPartitions
from litegpu.cache.sharing import share_partition, shared_partition
from litegpu.cache.store import CacheFolder

__all__ = ["CacheFolder", "CachedPartitions", "share_partition", "shared_partition"]
