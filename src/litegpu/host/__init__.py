"""The machine litegpu runs on, without anything of a GPU: files, threads, processes, packages."""
