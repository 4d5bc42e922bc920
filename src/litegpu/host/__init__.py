"""The host system, independent of GPUs: files, threads, processes, packages."""
