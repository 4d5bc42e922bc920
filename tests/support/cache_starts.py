"""Starts a model again and again on a cache folder that other processes use, too.

cache_starts.py MODEL FOLDER SEED STARTS DIES prints a line when it is ready, waits for one, and
then prints a digest of the outputs of each start. Before some starts it removes, cuts or changes
what is kept. In start number DIES it is killed while it writes.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import sys
from pathlib import Path
from random import Random
from typing import Any

from litegpu import GpuDelegate
from litegpu.host import private_files
from small_models import interpreter, random, run


def main(model: str, folder: str, seed: str, starts: str, dies: str) -> None:
    """Do what the module says."""
    chance, content, cache = Random(int(seed)), Path(model).read_bytes(), Path(folder)
    print("ready", flush=True)
    sys.stdin.readline()
    for number in range(int(starts)):
        if number == int(dies):
            vars(private_files)["os"] = Killed()
            while True:  # until no other process has left what it could take
                for path in cache.glob("*.artifact"):
                    path.unlink(missing_ok=True)
                answer(content, folder)
        elif number:
            with contextlib.suppress(OSError, ValueError):  # another process was there before
                _damage(cache, chance)
        print(answer(content, folder), flush=True)


class Killed:
    """The module os, but that a process ends in the middle of the first file it writes."""

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def fdopen(self, handle: int, mode: str, **options: Any) -> Any:
        """Write half a file and go, if it is to be written."""
        if mode == "wb":
            os.write(handle, bytes(5000))
            os.kill(os.getpid(), signal.SIGKILL)
        return os.fdopen(handle, mode, **options)


def _damage(folder: Path, chance: Random) -> None:
    """Remove, cut or change each file, or leave it."""
    for path in folder.glob("*.artifact"):
        kind = chance.choice(("leave", "leave", "remove", "cut", "change"))
        if kind == "remove":
            path.unlink()
        elif kind == "cut":
            os.truncate(path, chance.randrange(path.stat().st_size))
        elif kind == "change":
            with path.open("r+b") as file:
                file.seek(chance.randrange(path.stat().st_size))
                file.write(chance.randbytes(4))


def answer(model: bytes, folder: Path | str | None) -> str:
    """Return a digest of a model's outputs, with what a folder keeps; None keeps nothing."""
    delegate = GpuDelegate(
        backend="opencl",
        cache=None if folder else False,
        serialization_dir=folder,
        model_token="m",
    )
    outputs = run(interpreter(model, delegate), random(1, 9, 7, 3))
    assert delegate.report is not None and delegate.report.partitions
    return hashlib.sha256(b"".join(each.tobytes() for each in outputs)).hexdigest()


if __name__ == "__main__":
    main(*sys.argv[1:])
