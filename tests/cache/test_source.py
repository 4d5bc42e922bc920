"""Identification of litegpu's source: the installer's list of files, or the files."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from litegpu.cache import partitions
from litegpu.cache.partitions import CachedPartitions, PartitionRequest
from litegpu.cache.source import digest_of, source_digest
from litegpu.cache.store import CacheFolder
from litegpu.numeric_policy import FP32
from paper_device import PaperDevice
from passes.graphs import GraphBuilder


def package(folder: Path) -> Path:
    """Write a package of two files, and a compiled file."""
    inside = folder / "some" / "inside"
    inside.mkdir(parents=True)
    for path in (folder / "some" / "__init__.py", inside / "kernel.jinja", inside / "x.pyc"):
        path.write_text("first")
        os.utime(path, ns=(10**9, 10**9))
    return folder / "some"


def installed(folder: Path, text: str) -> Path:
    """Write a package, and then the installer's list of its files."""
    found = package(folder)
    record = folder / "some-1.0.dist-info" / "RECORD"
    record.parent.mkdir()
    record.write_text(text)
    return found


def test_any_file_of_a_checkout_counts_but_those_of_tools(tmp_path: Path) -> None:
    where = package(tmp_path)
    found = [digest_of(where, "1.0")]
    assert digest_of(where, "1.0") == found[0]
    kernel = where / "inside" / "kernel.jinja"
    kernel.write_text("other")
    os.utime(kernel, ns=(2 * 10**9, 2 * 10**9))  # of one size
    found.append(digest_of(where, "1.0"))
    kernel.write_text("longer")
    os.utime(kernel, ns=(2 * 10**9, 2 * 10**9))  # of one time
    found.append(digest_of(where, "1.0"))
    (where / "new.py").touch()
    found.append(digest_of(where, "1.0"))
    assert len(set(found)) == len(found)
    (where / "inside" / "x.pyc").write_text("compiled anew")
    for name in ("tools", "__pycache__"):
        (where / name).mkdir()
        (where / name / "some.py").touch()
    assert digest_of(where, "1.0") == found[-1]


def test_an_installed_package_is_its_list_wherever_it_lies(tmp_path: Path) -> None:
    text = (
        "some/__init__.py,sha256=a,5\nsome/__pycache__/x.cpython-311.pyc,,\nother.py,sha256=b,5\n"
    )
    first, second = (installed(tmp_path / each, text) for each in ("a", "b"))
    assert digest_of(first, "1.0") == digest_of(second, "1.0")
    other = installed(tmp_path / "c", text.replace("sha256=a", "sha256=c"))
    assert digest_of(first, "1.0") != digest_of(other, "1.0")
    assert digest_of(first, "1.0") != digest_of(first, "1.1")  # a list of another version is none


def test_what_is_changed_after_an_installation_counts(tmp_path: Path) -> None:
    where = installed(tmp_path, "some/__init__.py,sha256=a,5\n")
    before = digest_of(where, "1.0")
    changed = where / "__init__.py"
    after = os.stat(tmp_path / "some-1.0.dist-info" / "RECORD").st_mtime_ns + 1
    os.utime(changed, ns=(after, after))
    assert digest_of(where, "1.0") != before


def test_the_list_of_an_editable_installation_names_no_module(tmp_path: Path) -> None:
    where = installed(tmp_path / "a", "some.pth,sha256=a,5\n")
    assert digest_of(where, "1.0") == digest_of(where, "2.0")


def test_of_a_package_in_a_file_the_file_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A zip file from which Python imports, or a frozen program."""
    whole, there = tmp_path / "app.pyz", package(tmp_path)
    monkeypatch.setattr(sys, "executable", str(whole))
    for where, frozen in ((whole / "some", False), (tmp_path / "none", True), (there, True)):
        monkeypatch.setattr(sys, "frozen", frozen, raising=False)
        found = []
        for text in ("first", "longer"):
            whole.write_text(text)
            found.append(digest_of(where, "1.0"))
        assert found[0] != found[1]
        (there / "unpacked.py").write_text("anew, at each start")
        assert digest_of(where, "1.0") == found[1]


def test_partitions_of_another_source_have_other_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    builder = GraphBuilder()
    graph = builder.graph(builder.conv(builder.input(1, 4, 4, 4), 4))
    keys = []
    for digest in (source_digest, lambda: "another"):
        monkeypatch.setattr(partitions, "source_digest", digest)
        cached = CachedPartitions(
            CacheFolder(str(tmp_path), "token"), PartitionRequest(graph, PaperDevice(), FP32, ())
        )
        keys.append(cached.name().whole())
    assert keys[0] != keys[1]
