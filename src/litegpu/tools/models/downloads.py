"""Downloads files from their official URLs, checks their SHA-256, and caches them."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import tempfile
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from litegpu.errors import DownloadError, OptionsError
from litegpu.host.user_folders import user_cache
from litegpu.tools.console import note

TIMEOUT_S = 20


@dataclass(frozen=True)
class Asset:
    """A file to download, identified by the hash of its content."""

    file_name: str
    url: str
    sha256: str


def cache_folder() -> Path:
    """Return the path of the cache folder for downloads, which may not exist yet."""
    return user_cache("downloads", "Downloading a model")


@dataclass(frozen=True)
class Fetched:
    """The content of an asset, and its path in the cache, or its URL if it is not cached."""

    content: bytes
    source: str


def _cached(asset: Asset, folder: Path | None = None) -> Fetched | None:
    """Return an intact earlier download of `asset`, if available."""
    path = (folder or cache_folder()) / asset.file_name
    with contextlib.suppress(OSError):
        content = path.read_bytes()
        if _sha256(content) == asset.sha256:
            return Fetched(content, str(path))
    return None


def fetch(asset: Asset, folder: Path | None = None) -> Fetched:
    """Return `asset` from `folder` (default: the cache), downloading it if necessary.

    If the cache folder is missing or not writable, the function prints a note and does not cache
    the download.

    Raises:
        DownloadError: the file is not available, or its hash differs from the expected one.
        MissingDependencyError: the package that determines the cache folder is not installed.
    """
    unusable = ""
    try:
        folder = folder or cache_folder()
    except OptionsError as error:
        unusable = str(error)
    if folder and (found := _cached(asset, folder)):
        return found
    note(f"Downloading {asset.file_name} from {asset.url}")
    content = _download(asset)
    if folder:
        try:
            return Fetched(content, str(_store(asset, folder, content)))
        except OSError as error:
            unusable = f"'{folder}' cannot be written to: {error.strerror or error}."
    note(f"{asset.file_name} is not cached and will be downloaded again. {unusable}")
    return Fetched(content, asset.url)


def _download(asset: Asset) -> bytes:
    try:
        with urllib.request.urlopen(asset.url, timeout=TIMEOUT_S) as response:
            content: bytes = response.read()
    except (OSError, http.client.HTTPException) as error:
        raise DownloadError(
            f"{asset.file_name} could not be downloaded from {asset.url}: {error}. Download the "
            "file yourself, and set LITEGPU_MODELS to its folder."
        ) from error
    if (actual := _sha256(content)) != asset.sha256:
        raise DownloadError(
            f"{asset.url} returned a file with SHA-256 {actual}, not the expected {asset.sha256}. "
            "Nothing was saved; a proxy or a damaged transfer may be the cause, so try again."
        )
    return content


def _store(asset: Asset, folder: Path, content: bytes) -> Path:
    """Write a file atomically. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=folder, prefix=asset.file_name)
    part = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        return part.replace(folder / asset.file_name)
    finally:
        part.unlink(missing_ok=True)


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
