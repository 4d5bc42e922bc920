"""Caches compiled Jinja templates in the folder where Python caches compiled modules."""

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
    """The compiled templates in a folder: `__pycache__` of `kernels/`, if it is writable.

    Compiling the templates that a model needs takes some 100 ms. litegpu trusts cached templates as
    Python trusts cached modules: a user who can write to that folder can change modules as well. A
    checksum by Jinja ensures that a cached file belongs to this template text and Python version;
    Jinja's version and `options` are part of the file's name.

    The cache writes nothing if PYTHONDONTWRITEBYTECODE is set, as for modules.
    """

    def __init__(self, options: str, folder: Path | None = None) -> None:
        """Cache the templates of an environment; by default in the folder of cached modules."""
        self._folder = _cache_folder() if folder is None else folder
        self._tag = hashlib.sha256(f"{jinja2.__version__} {options}".encode()).hexdigest()[:16]

    def load_bytecode(self, bucket: Bucket) -> None:
        """Fill a bucket from the cache; leave it empty if there is no usable file."""
        try:
            with open(self._path(bucket), "rb") as file:
                bucket.load_bytecode(file)
        except OSError:
            return
        except Exception:  # unpickling a damaged file may raise anything
            bucket.reset()

    def dump_bytecode(self, bucket: Bucket) -> None:
        """Store a compiled template, if that is permitted; an existing file is replaced at once."""
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
            except BaseException:  # not even an interrupt leaves a temporary file
                with contextlib.suppress(OSError):
                    os.unlink(temporary)
                raise

    def _path(self, bucket: Bucket) -> Path:
        return self._folder / f"{bucket.key}.{self._tag}.pyc"


def _cache_folder() -> Path:
    kernels = Path(__file__).parents[1] / "kernels" / "__init__.py"
    return Path(importlib.util.cache_from_source(os.fspath(kernels))).parent
