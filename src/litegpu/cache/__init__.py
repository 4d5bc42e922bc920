"""Caches compiled partitions, for later interpreters of this process and for other processes."""
