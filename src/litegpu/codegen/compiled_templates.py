"""Templates as the code that Jinja makes of them, kept where Python keeps that of modules."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import sys
from pathlib import Path

import jinja2
from jinja2.bccache import Bucket


class CompiledTemplates(jinja2.BytecodeCache):
    """Compiled templates in a folder: `__pycache__` of `kernels/`, where it can be written to.

    To compile those of a model takes some 100 ms. They are trusted as much as Python's own files:
    any user who may write to that folder may change modules, too. Jinja checks by a checksum that a
    file is of this text and this version of Python; its own version and `options` are part of the
    name.
    As of modules, nothing is written under PYTHONDONTWRITEBYTECODE.
    """

    def __init__(self, options: str, folder: Path | None = None) -> None:
        """Cache the templates of an environment; by default in the folder of cached modules."""
        self._folder = _cache_folder() if folder is None else folder
        self._tag = hashlib.sha256(f"{jinja2.__version__} {options}".encode()).hexdigest()[:16]

    def load_bytecode(self, bucket: Bucket) -> None:
        """Fill a bucket with what was kept; leave it empty where that cannot be used."""
        try:
            with open(self._path(bucket), "rb") as file:
                bucket.load_bytecode(file)
        except OSError:
            return
        except Exception:  # whatever pickle makes of a damaged file
            bucket.reset()

    def dump_bytecode(self, bucket: Bucket) -> None:
        """Keep what was compiled, if it may be; others see all of it or nothing."""
        if sys.dont_write_bytecode:
            return
        path = self._path(bucket)
        temporary = path.with_name(f"{path.name}.{os.getpid()}.{id(bucket)}.pyc")
        with contextlib.suppress(OSError):
            self._folder.mkdir(exist_ok=True)
            try:
                with open(temporary, "xb") as file:
                    bucket.write_bytecode(file)
                os.replace(temporary, path)
            except BaseException:  # an interrupt, too, leaves nothing behind
                with contextlib.suppress(OSError):
                    os.unlink(temporary)
                raise

    def _path(self, bucket: Bucket) -> Path:
        return self._folder / f"{bucket.key}.{self._tag}.pyc"


def _cache_folder() -> Path:
    kernels = Path(__file__).parents[1] / "kernels" / "__init__.py"
    return Path(importlib.util.cache_from_source(os.fspath(kernels))).parent
