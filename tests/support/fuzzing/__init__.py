"""Damaged models: what the CPU's kernels run a device must run alike, and nothing may crash.

`seeds` has the models to start from, `mutations` damages them, `worker` runs them in processes that
may crash, `oracle` compares what came out. `tests/support/fuzz.py` is the command line.
"""
