"""The folder of artifacts: file names, damaged files, permissions, size limits."""

from __future__ import annotations

import hashlib
import logging
import os
import struct
import subprocess
import sys
import tempfile
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from litegpu import config
from litegpu.backends.constant_blocks import ConstantBlock
from litegpu.cache import store as store_module
from litegpu.cache.store import (
    ArtifactStore,
    DamagedError,
    all_entries,
    blocks,
    clear,
    default_folders,
    entries,
    evict,
    kernels,
    read,
    read_block,
)
from litegpu.host import disk_cache, private_files
from litegpu.host.disk_cache import DiskCache
from litegpu.host.private_files import Folder

posix = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="Windows has no such owners, modes")
KEY, OTHER = bytes(32), bytes([1] * 32)
DATA = np.random.default_rng(0).integers(0, 255, 3 << 20, np.uint8).tobytes()


@pytest.fixture(autouse=True)
def nothing_reported_yet(caplog: pytest.LogCaptureFixture) -> None:
    disk_cache._reported.clear()
    caplog.set_level(logging.INFO, "litegpu")


def stored(folder: Path, data: bytes = DATA) -> tuple[ArtifactStore, Path]:
    """Keep data under KEY; return the store and the path of the file."""
    store = ArtifactStore(folder, "a model")
    store.store(KEY, [data[:5], memoryview(data)[5:]])
    return store, store.path(KEY)


def loaded(store: ArtifactStore, key: bytes = KEY) -> bytes | None:
    found = store.load(key)
    return None if found is None else found.tobytes()


def test_what_was_stored_is_found_by_its_key(tmp_path: Path) -> None:
    store, path = stored(tmp_path / "new" / "folder")
    assert loaded(store) == DATA and loaded(store, OTHER) is None
    store.store(OTHER, [b""])
    assert loaded(store, OTHER) == b"" and loaded(store) == DATA
    assert path.name == f"a_model-{'0' * 40}.artifact"


@posix
def test_folders_and_files_are_private(tmp_path: Path) -> None:
    _, path = stored(tmp_path / "new")
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    "token", ["../../up", "/etc/passwd", "a/b\\c", "..", "", "\0", "é" * 200, "nul.x"]
)
def test_a_token_never_leaves_the_folder(tmp_path: Path, token: str) -> None:
    store = ArtifactStore(tmp_path / "folder", token)
    store.store(KEY, [DATA])
    assert loaded(store) == DATA
    (path,) = (tmp_path / "folder").iterdir()
    assert "." not in path.stem, "Windows knows nul.txt as a device"
    assert path == store.path(KEY) and [*tmp_path.iterdir()] == [path.parent]


def test_every_byte_counts(tmp_path: Path) -> None:
    """Flips bits of the header and of some data, and truncates the file at all relevant lengths."""
    _, path = stored(tmp_path, DATA[:5000])
    whole = path.read_bytes()
    for position in (*range(100), len(whole) - 1):
        path.write_bytes(
            whole[:position]
            + bytes([whole[position] ^ (1 << position % 8)])
            + whole[position + 1 :]
        )
        if 12 <= position < 16:  # of no meaning yet
            continue
        with pytest.raises(DamagedError):
            read(path, KEY)
    for length in (0, 1, 8, 40, 79, 80, 87, 88, 89, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(DamagedError, match=r"the file (is|was) truncated"):
            read(path, KEY)
    path.write_bytes(whole + b"\0")
    with pytest.raises(DamagedError, match="the checksum is wrong"):
        read(path, KEY)


@pytest.mark.parametrize(
    ("position", "wrong", "why"),
    [
        (0, b"GGUF", "the file is not an artifact of litegpu"),
        (8, struct.pack("<I", 3), "the file has format 3, not 2"),
        (16, b"\x07", "the file belongs to another model, device, version or options"),
        (2000, b"no such", "the checksum is wrong: the file was truncated or changed"),
    ],
)
def test_what_is_wrong_is_told_once_and_replaced(
    tmp_path: Path, position: int, wrong: bytes, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    store, path = stored(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[:position] + wrong + whole[position + len(wrong) :])
    assert loaded(store) is None and loaded(store) is None
    assert caplog.text.count(f"is not used and will be replaced: {why}") == 1
    assert caplog.records[0].levelno == logging.INFO
    store.store(KEY, [DATA])
    assert path.read_bytes() == whole


def test_other_folders_are_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    _, shipped = stored(tmp_path / "shipped")
    store = ArtifactStore(tmp_path / "own", "a model", others=[tmp_path / "none", shipped.parent])
    assert loaded(store) == DATA and not (tmp_path / "own").exists()
    store.store(OTHER, [b"new"])
    assert loaded(store, OTHER) == b"new"
    assert [*shipped.parent.iterdir()] == [shipped] and not (tmp_path / "none").exists()
    shipped.write_bytes(b"damaged")
    assert loaded(store) is None
    assert f"'{shipped}' is not used and will be replaced: the file is truncated" in caplog.text
    store.store(KEY, [DATA])
    assert loaded(store) == DATA and shipped.read_bytes() == b"damaged"
    store.discard(KEY, "the driver rejects it")
    assert loaded(store) is None and not shipped.exists()


def test_what_proves_unusable_is_removed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store, path = stored(tmp_path)
    store.discard(KEY, "the driver rejects it")
    assert not path.exists()
    assert "is unusable and will be replaced: the driver rejects it" in caplog.text


@posix
def test_links_and_foreign_files_are_not_followed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store, path = stored(tmp_path / "folder")
    elsewhere = tmp_path / "elsewhere"
    os.rename(path, elsewhere)
    path.symlink_to(elsewhere)
    assert loaded(store) is None and "not a regular file" in caplog.text
    assert entries(path.parent) == []
    store.store(KEY, [b"new"])
    assert loaded(store) == b"new" and not path.is_symlink()
    assert len(elsewhere.read_bytes()) > len(DATA)
    path.chmod(0o666)
    assert loaded(store) is None and "other users may write to it" in caplog.text


@posix
def test_a_folder_that_others_write_to_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store, path = stored(tmp_path / "folder")
    path.parent.chmod(0o777)
    assert loaded(store) is None
    store.store(OTHER, [DATA])
    assert [*path.parent.iterdir()] == [path]
    assert caplog.text.count("Compiled partitions cannot be cached in") == 1
    assert "run: chmod go-w" in caplog.text and "check serialization_dir" in caplog.text
    caplog.clear()
    trusting = ArtifactStore(path.parent, "a model", trusted=True)
    assert loaded(trusting) == DATA and not caplog.records
    trusting.store(OTHER, [b"of all"])
    assert loaded(trusting, OTHER) == b"of all"
    assert trusting.path(OTHER).stat().st_mode & 0o777 == 0o644


def test_a_full_disk_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(private_files, "replace", full)
    stored(tmp_path)
    assert "cannot be cached" in caplog.text and "No space left" in caplog.text


def test_a_folder_that_is_only_read_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store, _ = stored(tmp_path)

    def refuse(*_: object) -> None:
        raise PermissionError(30, "Read-only file system")

    monkeypatch.setattr(os, "utime", refuse)
    assert loaded(store) == DATA
    assert not caplog.records


def test_the_least_recently_used_are_removed_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ArtifactStore(tmp_path)
    keys = [bytes([number]) * 32 for number in range(4)]
    for age, key in zip((40, 30, 20), keys, strict=False):
        store.store(key, [DATA[: 1 << 20]])
        os.utime(store.path(key), (age, age))
    store.load(keys[0])  # the oldest is used now
    monkeypatch.setenv("LITEGPU_CACHE_LIMIT", "3")
    (tmp_path / "other.txt").write_bytes(DATA)
    store.store(keys[3], [DATA[: 1 << 20]])
    assert {entry.path for entry in entries(tmp_path)} == {store.path(keys[k]) for k in (0, 3)}
    monkeypatch.setenv("LITEGPU_CACHE_LIMIT", "0")
    store.store(keys[1], [DATA])
    assert [entry.path for entry in entries(tmp_path)] == [store.path(keys[1])]
    assert len(evict(tmp_path, 0)) == 1 and (tmp_path / "other.txt").exists()


def block(seed: int, nbytes: int = 1 << 20) -> ConstantBlock:
    data = np.random.default_rng(seed).integers(0, 255, nbytes, np.uint8)
    return ConstantBlock.of(data, hashlib.sha256(data.data).hexdigest())


def test_blocks_are_stored_once_and_checked(tmp_path: Path) -> None:
    store, first, second = ArtifactStore(tmp_path), block(1), block(2)
    store.store(KEY, [DATA], [first])
    store.store(OTHER, [DATA], [ConstantBlock.missing(first.nbytes, first.digest), second])
    assert {entry.path.stem for entry in blocks(tmp_path)} == {first.digest, second.digest}
    found = store.block(first.nbytes, first.digest)
    assert store.has_block(found) and found.read().tobytes() == first.read().tobytes()
    assert not store.has_block(ConstantBlock.missing(first.nbytes - 1, first.digest))
    path = tmp_path / f"{first.digest}.block"
    with pytest.raises(DamagedError, match="the file has 1048576 bytes instead of 5"):
        read_block(path, 5)
    path.write_bytes(second.read().tobytes())
    with pytest.raises(ValueError, match="cannot be read: the checksum is wrong"):
        found.read()
    assert not path.exists()
    with pytest.raises(ValueError, match="cannot be read: the file is missing"):
        found.read()
    assert store.block(second.nbytes, second.digest).read().tobytes() == second.read().tobytes()


@pytest.mark.parametrize("digest", ["../../etc/passwd", "", "0" * 63, "0" * 65, "A" * 64])
def test_a_digest_is_no_path(tmp_path: Path, digest: str) -> None:
    found = ArtifactStore(tmp_path).block(4, digest)
    assert not ArtifactStore(tmp_path).has_block(found)
    with pytest.raises(ValueError, match="cannot be read: the file is missing"):
        found.read()


def test_bytes_of_a_block_that_nobody_has() -> None:
    with pytest.raises(ValueError, match="the bytes of the block 000000000000 are not known"):
        ConstantBlock.missing(4, "0" * 64).read()


def test_blocks_of_other_folders_are_read(tmp_path: Path) -> None:
    shipped = ArtifactStore(tmp_path / "shipped")
    shipped.store(KEY, [DATA], [block(1)])
    store = ArtifactStore(tmp_path / "own", others=[shipped.folder])
    store.store(OTHER, [DATA], [block(1), block(2)])
    assert [entry.path.stem for entry in blocks(store.folder)] == [block(2).digest]
    assert store.block(1 << 20, block(1).digest).read().tobytes() == block(1).read().tobytes()


@posix
def test_blocks_of_other_users_are_rejected(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    store.store(KEY, [DATA], [block(1)])
    (entry,) = blocks(tmp_path)
    entry.path.chmod(0o666)
    found = store.block(1 << 20, block(1).digest)
    assert not store.has_block(found)
    with pytest.raises(ValueError, match="cannot be read: other users may write to it"):
        found.read()
    store.store(KEY, [DATA], [block(1)])
    assert store.has_block(found)


def test_an_artifact_is_removed_before_its_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, mib = ArtifactStore(tmp_path), DATA[: 1 << 20]
    monkeypatch.setenv("LITEGPU_CACHE_LIMIT", "1")
    store.store(KEY, [mib], [block(1), block(2)])
    assert len(entries(tmp_path)) == 1 and len(blocks(tmp_path)) == 2, "the newest remain"
    for age, entry in enumerate(all_entries(tmp_path)):
        os.utime(entry.path, (age, age))
    assert all_entries(tmp_path)[0].path.suffix == ".artifact"
    monkeypatch.setenv("LITEGPU_CACHE_LIMIT", "4")
    store.store(OTHER, [mib], [block(2), block(3)])
    assert [entry.path for entry in entries(tmp_path)] == [store.path(OTHER)]
    remaining = {block(seed).digest for seed in (2, 3)}
    assert {entry.path.stem for entry in blocks(tmp_path)} == remaining
    assert len(clear(tmp_path)) == 3 and not [*tmp_path.iterdir()]


def test_kernels_count_and_are_removed_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of the user are never removed, whatever their suffix."""
    cache = DiskCache(Folder(str(tmp_path)), ".cubin")
    for age, key in ((10, "used"), (20, "unused")):
        cache.store(bytes(1 << 20), key)
        for path in tmp_path.glob("*.cubin"):
            if path.stat().st_mtime > 1000:
                os.utime(path, (age, age))
    assert cache.load("used") is not None
    (tmp_path / "mine.artifact").write_bytes(DATA)
    os.utime(tmp_path / "mine.artifact", (0, 0))
    monkeypatch.setenv("LITEGPU_CACHE_LIMIT", "3")
    ArtifactStore(tmp_path).store(KEY, [DATA[: 1 << 20]])
    assert cache.load("used") is not None and cache.load("unused") is None
    assert (tmp_path / "mine.artifact").exists()
    assert [len(found) for found in (entries(tmp_path), kernels(tmp_path))] == [1, 1]


def test_a_limit_that_is_no_number_is_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("LITEGPU_CACHE_LIMIT", "half of it")
    assert config.cache_limit() == config.cache_limit() == 8192 << 20
    assert (
        caplog.text.count("LITEGPU_CACHE_LIMIT is 'half of it', which is not a whole number") == 1
    )


def test_threads_that_store_and_load_see_whole_files(tmp_path: Path) -> None:
    contents = [bytes([number]) * (1 << 20) for number in range(4)]
    store, _ = stored(tmp_path, contents[0])

    def work(number: int) -> bool:
        store.store(KEY, [contents[number % 4]])
        return loaded(store) in contents

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(40)))
    assert len([*tmp_path.iterdir()]) == 1


def test_a_process_that_is_killed_while_it_writes_leaves_what_was_there(tmp_path: Path) -> None:
    store, _ = stored(tmp_path)
    source = f"""
import os
from litegpu.cache.store import ArtifactStore
os.replace = lambda *_: os._exit(9)
ArtifactStore({str(tmp_path)!r}, "a model").store({KEY!r}, [b"half of it"])
"""
    assert subprocess.run([sys.executable, "-c", source], check=False).returncode == 9
    assert loaded(store) == DATA
    assert len([*tmp_path.iterdir()]) == 2
    store.store(KEY, [DATA])
    assert [*tmp_path.iterdir()] == [store.path(KEY)]


def test_the_usual_folder_is_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LITEGPU_CACHE", raising=False)
    (folder,) = default_folders()
    assert folder.parts[-2:] == ("litegpu", "partitions")
    monkeypatch.setenv("LITEGPU_CACHE", tempfile.gettempdir())
    assert default_folders() == [Path(tempfile.gettempdir())]


@posix
def test_a_file_that_was_lengthened_takes_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With holes it takes no room on the disk either; and what has no room is replaced, too."""
    store, path = stored(tmp_path)
    whole = path.read_bytes()
    os.truncate(path, 1 << 33)
    tracemalloc.start()
    assert loaded(store) is None and tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()
    assert "the checksum is wrong: the file was truncated or changed" in caplog.text
    path.write_bytes(whole)

    def full(*_: object) -> None:
        raise MemoryError("none is left")

    with monkeypatch.context() as patched:
        patched.setattr(np, "empty", full)
        assert loaded(store) is None and "none is left" in caplog.text
    assert loaded(store) == DATA


def test_no_file_is_larger_than_any(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, _ = stored(tmp_path)
    monkeypatch.setattr(store_module, "_MAX_BYTES", 100)
    assert loaded(store) is None
