"""`litegpu cache`: lists, checks, clears and fills the cache of compiled partitions."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from litegpu import GpuDelegate, GpuDelegateOptions, config
from litegpu.cache.artifact import Artifact, describe, made_by
from litegpu.cache.store import (
    DamagedError,
    Entry,
    beginning,
    clear,
    entries,
    evict,
    kernels,
    read,
)
from litegpu.errors import FileError, OptionsError
from litegpu.host.private_files import check_folder
from litegpu.runtime_abi.interpreter import interpreter
from litegpu.tools.console import note, print_table, start_bar
from litegpu.tools.delegation import DELEGATE_FLAGS, given_options, quietly
from litegpu.tools.files import JSON, prints_json, try_to_write, write_json
from litegpu.tools.flags import Flag, at_least
from litegpu.tools.models import FoundModel, find_model
from litegpu.version import __version__
from litegpu.wording import counted, printable, shown_size, shown_time

ARGUMENTS: dict[str, str] = {}
FLAGS = (
    Flag(
        "warm",
        str,
        None,
        "compile a model into the cache with the delegate's flags; several with commas",
    ),
    Flag(
        "verify",
        bool,
        False,
        "read every file whole; exit status 1 if one is damaged, which the next start replaces",
    ),
    Flag("clear", bool, False, "remove all files"),
    Flag(
        "limit",
        at_least(0),
        None,
        "remove the least recently used files until the cache has at most this many MiB",
    ),
    *DELEGATE_FLAGS,
    JSON,
)
EXAMPLES = (
    "litegpu cache",
    "litegpu cache --warm=model.tflite --precision=fp16",
    "litegpu cache --warm=zoo:resnet50,zoo:mobilenet_v1_1.0_224",
    "litegpu cache --verify --json",
    "litegpu cache --limit=512",
)
NOTES = (
    "What is cached depends on the model, the options, the device and its driver: give --warm the "
    "flags of the delegate that will be used. --serialization_dir names another folder than the "
    "user's own.",
)


@dataclass(frozen=True)
class _Seen:
    """A file, its contents, and its fault, if there is one."""

    entry: Entry
    inputs: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """Name and shape of each input of the partition."""
    device: str = ""
    precision: str = ""
    version: str = ""
    fault: str = ""

    def to_dict(self) -> dict[str, Any]:
        return {
            "path": str(self.entry.path),
            "bytes": self.entry.nbytes,
            "used": self.entry.used,
            "inputs": [{"name": name, "shape": list(shape)} for name, shape in self.inputs],
            "device": self.device,
            "precision": self.precision,
            "version": self.version,
            "fault": self.fault,
        }


def main(args: argparse.Namespace) -> int:
    """Do what is requested, then list the cache; 1 if something is damaged or did not warm."""
    if args.cache is False:
        raise OptionsError("--cache=false caches nothing. Leave it out to list the cache.")
    try_to_write("json", args.json)
    options = {**given_options(args), "cache": args.cache or True}
    kept_in = GpuDelegateOptions(**options).cache_folder()
    assert kept_in is not None  # cache=True reports that
    folder, trusted = Path(kept_in.folder), kept_in.trusted
    _require_readable(folder)
    removed = _clear(folder) if args.clear else []
    removed += [] if args.limit is None else evict(folder, args.limit << 20)
    models = [] if args.warm is None else [*map(find_model, args.warm.split(","))]
    warmed = _warm_all(models, folder, options)
    seen = [_look(entry, args.verify, trusted) for entry in reversed(entries(folder))]
    refused, others = _refused(folder, trusted), kernels(folder)
    if prints_json(args):
        found = {
            "folder": str(folder),
            "refused": refused,
            "removed": [str(entry.path) for entry in removed],
            "files": [each.to_dict() for each in seen],
            "kernels": {"files": len(others), "bytes": _size(others)},
        }
        write_json("json", args.json, found)
    else:
        if refused:
            note(f"'{folder}' is not used: {refused}.")
        _print(folder, removed, seen, others, args.verify)
    return 0 if warmed and not any(each.fault for each in seen) else 1


def _require_readable(folder: Path) -> None:
    """Raise FileError if it exists and is not a folder, or cannot be read."""
    try:
        entries(folder)
    except OSError as error:
        raise FileError(
            f"'{folder}' cannot be read: {error.strerror}. Name a folder with --serialization_dir."
        ) from error


def _refused(folder: Path, trusted: bool) -> str:
    """Return why a folder is neither read nor written, an empty text if it is."""
    try:
        check_folder(folder, trusted)
    except FileNotFoundError:  # it will be created
        return ""
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _clear(folder: Path) -> list[Entry]:
    """Remove all files of litegpu. Raises FileError if some remain."""
    removed = clear(folder)
    if left := [*entries(folder), *kernels(folder)]:
        raise FileError(f"'{left[0].path}' cannot be removed. Check who owns the folder.")
    return removed


def _warm_all(models: Sequence[FoundModel], folder: Path, options: dict[str, Any]) -> bool:
    """Warm models, one after the other; return whether everything is cached at the end."""
    warmed, used = True, set[Path]()
    for model in models:
        before = {*entries(folder)}
        warmed &= _warm(model, folder, options)
        used |= {entry.path for entry in {*entries(folder)} - before}
    if gone := used - {entry.path for entry in entries(folder)}:
        limit = shown_size(config.cache_limit())
        note(
            f"{counted(len(gone), 'file')} made room for later ones: the limit of all files is "
            f"{limit}. Set a larger LITEGPU_CACHE_LIMIT (MiB), here and where they are used."
        )
    return warmed and not gone


def _warm(model: FoundModel, folder: Path, options: dict[str, Any]) -> bool:
    """Compile a model, or find it in the cache; return whether all delegated nodes are cached."""
    before, began = {entry.path for entry in entries(folder)}, time.perf_counter()
    options = {"quick_start": False, **options}
    with GpuDelegate(**options, on_progress=start_bar()) as delegate, quietly() as warnings:
        # The CPU's part of a model does not matter.
        interpreter(model.content, delegate)
        delegate.wait_for_best_code()
        report = delegate.report
    seconds = time.perf_counter() - began
    count = len(report.partitions) if report is not None else 0
    new = [entry for entry in entries(folder) if entry.path not in before]
    if not count:
        outcome = "; `litegpu check` says why"
    elif warnings:
        outcome = ", which cannot be cached"
    else:
        outcome = f", {counted(len(new), 'new file')}" if new else ", which was already cached"
    what = f"{counted(count, 'partition')} on {delegate.device.title}"
    note(f"{model.source}: {what}{outcome} ({shown_time(seconds)})")
    return bool(count) and not warnings


def _look(entry: Entry, whole: bool, trusted: bool = False) -> _Seen:
    """Return the facts of a file; without `whole`, damage is not detected."""
    seen = _Seen(entry)
    try:
        data = read(entry.path, trusted=trusted) if whole else beginning(entry.path, trusted)
        if data is None:
            raise DamagedError("it is gone")
    except (DamagedError, OSError) as error:
        return replace(seen, fault=str(error)) if whole else seen
    try:
        if whole:
            Artifact.read(data)
        found = describe(data)
    except ValueError as error:
        version = made_by(data)
        intact = version not in ("", __version__)  # and nothing uses it
        return replace(seen, version=version, fault=str(error) if whole and not intact else "")
    values = [found.facts.values[v] for v in found.inputs if v in found.facts.values]
    inputs = tuple((value.name, value.shape) for value in values)
    origin = {name: getattr(found, name) for name in ("device", "precision", "version")}
    return replace(seen, inputs=inputs, **origin)


def _size(files: Sequence[Entry]) -> int:
    return sum(entry.nbytes for entry in files)


def _print(
    folder: Path,
    removed: Sequence[Entry],
    seen: Sequence[_Seen],
    others: Sequence[Entry],
    whole: bool,
) -> None:
    if removed:
        note(f"removed: {counted(len(removed), 'file')}, {shown_size(_size(removed))}")
    if not seen and not others:
        print(f"Nothing is cached in '{folder}'.")
        return
    damaged = sum(bool(each.fault) for each in seen)
    columns = (*_COLUMNS, "damage") if damaged else _COLUMNS
    if seen:
        print_table(columns, (_row(each)[: len(columns)] for each in seen))
        print()
    found = f", {damaged or 'none'} damaged" if whole else ""
    size = shown_size(_size([each.entry for each in seen]))
    print(f"{counted(len(seen), 'file')}, {size} in '{folder}'{found}")
    if others:
        what = counted(len(others), "file")
        print(f"{what} of kernels and choices, {shown_size(_size(others))}")


_COLUMNS = ("file", ">size", "last used", "inputs", "precision", "?device", "?version")


def _row(seen: _Seen) -> tuple[str, ...]:
    entry = seen.entry
    used = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.used))
    inputs = ", ".join(f"{name} {'×'.join(map(str, shape))}" for name, shape in seen.inputs)
    facts = (inputs, seen.precision, seen.device, seen.version, seen.fault)
    return (entry.path.name, shown_size(entry.nbytes), used, *map(printable, facts))
