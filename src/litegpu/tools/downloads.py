"""Files from their official places, checked by SHA-256 and kept in the cache of the user."""

from __future__ import annotations

import hashlib
import http.client
import os
import tempfile
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from litegpu.errors import DownloadError
from litegpu.user_folders import user_cache

TIMEOUT_S = 20
CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class Asset:
    """A file on the network, known by its content."""

    file_name: str
    url: str
    sha256: str


def cache_folder() -> Path:
    """Return the folder that downloaded files are kept in (it may not exist yet)."""
    return user_cache("downloads", "Downloading a model")


def cached(asset: Asset, folder: Path | None = None) -> Path | None:
    """Return the path of an intact earlier download of `asset`, if there is one."""
    path = (folder or cache_folder()) / asset.file_name
    return path if path.is_file() and _sha256(path) == asset.sha256 else None


def fetch(asset: Asset, folder: Path | None = None) -> Path:
    """Return the path of `asset` in `folder` (default: the cache), downloading it when needed.

    Raises:
        DownloadError: the file cannot be had, or is not the one that was expected.
    """
    folder = folder or cache_folder()
    found = cached(asset, folder)
    if found:
        return found
    folder.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=folder, prefix=asset.file_name)
    part = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            _copy(asset, file.write)
        _check(asset, part)
        part.replace(folder / asset.file_name)
    finally:
        part.unlink(missing_ok=True)
    return folder / asset.file_name


def _copy(asset: Asset, write: Callable[[bytes], object]) -> None:
    try:
        with urllib.request.urlopen(asset.url, timeout=TIMEOUT_S) as response:
            while chunk := response.read(CHUNK_BYTES):
                write(chunk)
    except (OSError, http.client.HTTPException) as error:
        raise DownloadError(
            f"{asset.file_name} could not be downloaded from {asset.url}: {error}. "
            "Download it yourself and name its folder in LITEGPU_MODELS."
        ) from error


def _check(asset: Asset, path: Path) -> None:
    actual = _sha256(path)
    if actual != asset.sha256:
        raise DownloadError(
            f"{asset.url} gave a file with SHA-256 {actual}, not the expected {asset.sha256}. "
            "Nothing was kept; a proxy or a damaged transfer may be the cause, so try again."
        )


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()
