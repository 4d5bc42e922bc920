"""Downloads from a local server, verified by SHA-256 and stored once."""

from __future__ import annotations

import errno
import hashlib
import os
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from litegpu.errors import DownloadError, OptionsError
from litegpu.tools.models import downloads
from litegpu.tools.models.downloads import Asset, Fetched, fetch

CONTENT = b"TFL3 and so on" * 100_000
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Keep the test's output clean."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """The address of a server on this machine that serves `model.tflite`."""
    served = tmp_path / "served"
    served.mkdir()
    (served / "model.tflite").write_bytes(CONTENT)
    handler = partial(QuietHandler, directory=str(served))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as http:
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{http.server_port}"
        http.shutdown()
        thread.join()


def test_a_file_is_fetched_once(server: str, tmp_path: Path) -> None:
    asset = Asset("m.tflite", f"{server}/model.tflite", SHA256)
    folder = tmp_path / "cache" / "deep"
    assert downloads._cached(asset, folder) is None
    found = fetch(asset, folder)
    assert found == Fetched(CONTENT, str(folder / "m.tflite"))
    assert (folder / "m.tflite").read_bytes() == CONTENT
    offline = Asset("m.tflite", "http://127.0.0.1:9/nothing", SHA256)
    assert fetch(offline, folder) == found
    assert [file.name for file in folder.iterdir()] == ["m.tflite"]


def test_a_damaged_earlier_download_is_replaced(server: str, tmp_path: Path) -> None:
    (tmp_path / "m.tflite").write_bytes(b"half of i")
    asset = Asset("m.tflite", f"{server}/model.tflite", SHA256)
    assert downloads._cached(asset, tmp_path) is None
    assert fetch(asset, tmp_path).content == CONTENT


def test_the_wrong_content_is_refused_and_not_kept(server: str, tmp_path: Path) -> None:
    asset = Asset("m.tflite", f"{server}/model.tflite", "0" * 64)
    with pytest.raises(DownloadError, match=f"SHA-256 {SHA256}, not the expected 0000"):
        fetch(asset, tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_an_unreachable_place_names_url_and_remedy(server: str, tmp_path: Path) -> None:
    asset = Asset("m.tflite", f"{server}/missing.tflite", SHA256)
    with pytest.raises(DownloadError, match=r"missing\.tflite: .*404.*LITEGPU_MODELS"):
        fetch(asset, tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_what_cannot_be_cached_is_used_all_the_same(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    asset = Asset("m.tflite", f"{server}/model.tflite", SHA256)
    folder = tmp_path / "file" / "downloads"
    assert fetch(asset, folder) == Fetched(CONTENT, asset.url)
    assert f"'{folder}' cannot be written to: Not a directory." in capsys.readouterr().err

    def no_home() -> Path:
        raise OptionsError("this user has no home folder")

    monkeypatch.setattr(downloads, "cache_folder", no_home)
    assert fetch(asset) == Fetched(CONTENT, asset.url)
    said = "m.tflite is not cached and will be downloaded again. this user has no home folder"
    assert said in capsys.readouterr().err


def test_a_full_disk_leaves_no_half_of_a_file(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "replace", full)
    asset = Asset("m.tflite", f"{server}/model.tflite", SHA256)
    assert fetch(asset, tmp_path / "cache") == Fetched(CONTENT, asset.url)
    assert "cannot be written to: No space left on device." in capsys.readouterr().err
    assert list((tmp_path / "cache").iterdir()) == []
