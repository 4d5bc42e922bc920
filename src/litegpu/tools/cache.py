"""`litegpu cache`: lists, checks, clears and fills the cache of compiled partitions."""

from __future__ import annotations

import argparse
import itertools
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
    all_entries,
    beginning,
    blocks,
    clear,
    entries,
    evict,
    kernels,
    read,
    read_block,
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
        "compile these models into the cache; MODEL, --backend, --device and --precision "
        "may be lists, separated by commas",
    ),
    Flag(
        "verify",
        bool,
        False,
        "check the checksum of every file; exit status 1 if a file is damaged",
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
    "litegpu cache --warm=model.tflite,zoo:resnet50 --precision=fp32,fp16",
    "litegpu cache --verify --json",
    "litegpu cache --limit=512",
)
NOTES = (
    "A cache entry is valid for one model, one set of options, one device and one driver. So "
    "--warm needs the delegate flags of the later runs. --serialization_dir selects another "
    "folder than the user's cache.",
)


@dataclass(frozen=True)
class _Seen:
    """A cache file, its contents, and its fault, if any."""

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


@dataclass(frozen=True)
class _Contents:
    """A cache folder: why it is unusable, its files, and those of weights, kernels and choices."""

    folder: Path
    refused: str
    files: Sequence[_Seen]
    weights: Sequence[_Seen]
    kernels: Sequence[Entry]

    @property
    def damaged(self) -> int:
        return sum(bool(file.fault) for file in (*self.files, *self.weights))

    def to_dict(self) -> dict[str, Any]:
        return {
            "folder": str(self.folder),
            "refused": self.refused,
            "files": [file.to_dict() for file in self.files],
            "weights": {
                "files": len(self.weights),
                "bytes": _size([file.entry for file in self.weights]),
                "damaged": [str(file.entry.path) for file in self.weights if file.fault],
            },
            "kernels": {"files": len(self.kernels), "bytes": _size(self.kernels)},
        }


def main(args: argparse.Namespace) -> int:
    """Run the requested actions, then list the cache.

    Returns 1 if a file is damaged, or if a model was not cached.
    """
    if args.cache is False:
        raise OptionsError(
            "--cache=false disables the cache. Leave the flag out to list the cache."
        )
    try_to_write("json", args.json)
    each = _combinations({**given_options(args), "cache": args.cache or True})
    first, *_ = [GpuDelegateOptions(**options) for options in each]
    cache = first.cache_folder()
    assert cache is not None  # cache=True reports that
    folder, others, trusted = Path(cache.folder), [*map(Path, cache.others)], cache.trusted
    for path in (folder, *others):
        _require_readable(path)
    removed = _clear(folder) if args.clear else []
    removed += [] if args.limit is None else evict(folder, args.limit << 20)
    models = [] if args.warm is None else [*map(find_model, args.warm.split(","))]
    warmed = _warm_all(models, folder, each)
    found = [_read_folder(path, args.verify, trusted) for path in (folder, *others)]
    if prints_json(args):
        own, *shown = [one.to_dict() for one in found]
        removed_paths = [str(entry.path) for entry in removed]
        write_json("json", args.json, {**own, "removed": removed_paths, "others": shown})
    else:
        if removed:
            note(f"removed: {counted(len(removed), 'file')}, {shown_size(_size(removed))}")
        for one in found:
            _print(one, args.verify)
    return 0 if warmed and not any(one.damaged for one in found) else 1


def _combinations(options: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the options of each delegate: all combinations of comma-separated values."""
    names = [name for name in ("backend", "device", "precision") if name in options]
    values = itertools.product(*(options[name].split(",") for name in names))
    return [{**options, **dict(zip(names, chosen, strict=True))} for chosen in values]


def _read_folder(folder: Path, whole: bool, trusted: bool) -> _Contents:
    """Return the contents of a folder, the most recently used file first."""
    seen = [_look(entry, whole, trusted) for entry in reversed(entries(folder))]
    weights = [_look_at_block(entry, whole, trusted) for entry in reversed(blocks(folder))]
    return _Contents(folder, _refused(folder, trusted), seen, weights, kernels(folder))


def _require_readable(folder: Path) -> None:
    """Raise FileError if the path exists and is not a readable folder."""
    try:
        entries(folder)
    except OSError as error:
        raise FileError(
            f"'{folder}' cannot be read: {error.strerror}. Name a folder with --serialization_dir."
        ) from error


def _refused(folder: Path, trusted: bool) -> str:
    """Return why a folder cannot be used; an empty text if it can."""
    try:
        check_folder(folder, trusted)
    except FileNotFoundError:  # it will be created
        return ""
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _clear(folder: Path) -> list[Entry]:
    """Remove all cache files of litegpu. Raises FileError if files remain."""
    removed = clear(folder)
    if left := all_entries(folder):
        raise FileError(f"'{left[0].path}' cannot be removed. Check who owns the folder.")
    return removed


def _warm_all(models: Sequence[FoundModel], folder: Path, each: Sequence[dict[str, Any]]) -> bool:
    """Compile each model with each combination of options; return whether all are cached."""
    warmed, used = True, set[Path]()
    for model, options in itertools.product(models, each):
        before = {*entries(folder)}
        warmed &= _warm(model, folder, options)
        used |= {entry.path for entry in {*entries(folder)} - before}
    if gone := used - {entry.path for entry in entries(folder)}:
        limit = shown_size(config.cache_limit())
        note(
            f"{counted(len(gone), 'file')} removed, because the size of all files is limited to "
            f"{limit}. Set a larger LITEGPU_CACHE_LIMIT (MiB), also for the programs that use the "
            "cache."
        )
    return warmed and not gone


def _warm(model: FoundModel, folder: Path, options: dict[str, Any]) -> bool:
    """Compile a model or load it from the cache; return whether all partitions are cached."""
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
    """Read a cache file; without `whole`, the function does not detect damage."""
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


def _look_at_block(entry: Entry, whole: bool, trusted: bool) -> _Seen:
    """Return a file of weights; without `whole`, the function does not detect damage."""
    if whole:
        try:
            read_block(entry.path, trusted=trusted)
        except (DamagedError, OSError) as error:
            return _Seen(entry, fault=str(error))
    return _Seen(entry)


def _size(files: Sequence[Entry]) -> int:
    return sum(entry.nbytes for entry in files)


def _print(found: _Contents, whole: bool) -> None:
    if found.refused:
        note(f"'{found.folder}' is not used: {found.refused}.")
    if not found.files and not found.weights and not found.kernels:
        print(f"The cache '{found.folder}' is empty.")
        return
    faulty = any(file.fault for file in found.files)
    columns = (*_COLUMNS, "damage") if faulty else _COLUMNS
    if found.files:
        print_table(columns, (_row(file)[: len(columns)] for file in found.files))
        print()
    print(_counted(found.files, whole, f"in '{found.folder}'"))
    if found.weights:
        print(_counted(found.weights, whole, "of weights"))
    if found.kernels:
        what = counted(len(found.kernels), "file")
        print(f"{what} of kernels and choices, {shown_size(_size(found.kernels))}")


def _counted(files: Sequence[_Seen], whole: bool, what: str) -> str:
    """Return the number and the size of files, and with `whole` how many are damaged."""
    damaged = f", {sum(bool(file.fault) for file in files) or 'none'} damaged" if whole else ""
    size = shown_size(_size([file.entry for file in files]))
    return f"{counted(len(files), 'file')}, {size} {what}{damaged}"


_COLUMNS = ("file", ">size", "last used", "inputs", "precision", "?device", "?version")


def _row(seen: _Seen) -> tuple[str, ...]:
    entry = seen.entry
    used = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.used))
    inputs = ", ".join(f"{name} {'×'.join(map(str, shape))}" for name, shape in seen.inputs)
    facts = (inputs, seen.precision, seen.device, seen.version, seen.fault)
    return (entry.path.name, shown_size(entry.nbytes), used, *map(printable, facts))
