"""PyCoral's API for GPUs: the names and results of `pycoral.adapters` and `pycoral.utils`."""
