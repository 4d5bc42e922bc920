"""What is kept in a folder from one process to the next, compiled kernels above all."""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
from pathlib import Path

_log = logging.getLogger("litegpu")


class KeptFiles:
    """Files in a folder, found by everything that made them; without a folder, none."""

    def __init__(self, folder: str | None, suffix: str, held: str = "Compiled kernels") -> None:
        """Take a folder, which need not exist yet, and the suffix of the files' names.

        `held` tells in warnings what the files hold.
        """
        self._folder = Path(folder) if folder is not None else None
        self._suffix = suffix
        self._held = held

    @property
    def wanted(self) -> bool:
        """Whether there is a folder."""
        return self._folder is not None

    def load(self, *key: object) -> bytes | None:
        """Return what was kept under a key, None if nothing."""
        try:
            return self._path(key).read_bytes() if self._folder else None
        except OSError:
            return None

    def store(self, data: bytes, *key: object) -> None:
        """Keep data under a key; where that fails, a warning says so."""
        if self._folder is None:
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            # Readers see all of a file or none: it gets its name when it is complete.
            handle, temporary = tempfile.mkstemp(dir=self._folder)
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            os.replace(temporary, self._path(key))
        except OSError as error:
            _log.warning(
                "%s cannot be kept in '%s' (%s: %s); check serialization_dir.",
                *(self._held, self._folder, type(error).__name__, error),
            )

    def _path(self, key: tuple[object, ...]) -> Path:
        assert self._folder is not None
        return self._folder / f"{hashlib.sha256(repr(key).encode()).hexdigest()}{self._suffix}"
