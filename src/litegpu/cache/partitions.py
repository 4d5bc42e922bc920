"""Loads compiled partitions from the disk cache, or compiles and stores partitions."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial

from litegpu import config
from litegpu.backends.base import Device
from litegpu.cache.artifact import Artifact
from litegpu.cache.checks import check
from litegpu.cache.fingerprint import Fingerprint, device_facts, graph_facts, host_facts
from litegpu.cache.improving import improve, wait_for
from litegpu.cache.sharing import shared_or_new
from litegpu.cache.source import source_digest
from litegpu.cache.store import ArtifactStore, CacheFolder
from litegpu.engine.compiled import CompiledPartition, constant_outputs
from litegpu.errors import DeviceLostError, LitegpuError
from litegpu.graph import Graph
from litegpu.host.disk_cache import report_once
from litegpu.numeric_policy import NumericPolicy
from litegpu.ops.common.custom import custom_code
from litegpu.version import __version__
from litegpu.wording import shown_size


@dataclass(frozen=True)
class PartitionRequest:
    """A requested partition: all data on which it depends, except litegpu's code.

    `tuned` identifies the measured kernel choices; `precise` contains the values that are never
    rounded. `fast_compile` permits quickly compiled kernels until optimized kernels are ready.
    """

    graph: Graph
    device: Device
    policy: NumericPolicy
    tuned: object
    precise: Collection[int] = ()
    fast_compile: bool = False

    def facts(self) -> tuple[object, ...]:
        """Return the request's contribution to the fingerprint, without the device."""
        return (
            *(self.policy, self.tuned, graph_facts(self.graph), sorted(self.precise)),
            *(custom_code(self.graph), sorted(self.device.failures.unsafe)),
        )


def find_or_compile(
    wanted: PartitionRequest,
    folder: CacheFolder | None,
    compile_partition: Callable[[], CompiledPartition],
) -> CompiledPartition:
    """Return a partition after its first run: shared, loaded from a folder, or compiled.

    If `folder` is not None, a newly compiled partition is stored there. Quickly compiled code is
    recompiled in the background. Raises the errors of `compile_partition`.
    """
    cached = None if folder is None else CachedPartitions(folder, wanted)
    name = Fingerprint(*wanted.facts()) if cached is None else cached.name()

    def load_or_compile(whole: Callable[[], bytes]) -> tuple[CompiledPartition, bool]:
        holds, compiled = True, None if cached is None else cached.load(whole())
        if compiled is None:
            compiled = compile_partition()
            holds = name.holds()
            if cached is not None and holds:
                cached.store(whole(), compiled)
        compiled.executable.free_constants()
        if compiled.executable.fast_compiled:
            keep = None if cached is None or not holds else partial(cached.improve, whole())
            kernels = None if folder is None else folder.kernels
            improve(compiled.executable, wanted.device, kernels, keep)
        return compiled, holds

    found = shared_or_new(name, wanted.device, wanted.graph, load_or_compile)
    if not wanted.fast_compile:
        wait_for(found.executable)  # shared with a partition that permits fast compilation
    return found


class CachedPartitions:
    """Stored partitions that match a request.

    litegpu does not trust the files: `ArtifactStore` verifies their checksums, and `checks`
    verifies all bound ranges. If a file fails a check, litegpu recompiles the partition and
    replaces the file.
    """

    def __init__(self, folder: CacheFolder, wanted: PartitionRequest) -> None:
        self._store = ArtifactStore(*folder)
        self._token, self._requested, self._wanted = folder.token, folder.requested, wanted

    def name(self) -> Fingerprint:
        """Return the partition's name, which is the same in all processes."""
        device = self._wanted.device
        code = (__version__, source_digest())
        made_by = (host_facts(), device_facts(device.info), device.origin)
        return Fingerprint(*code, *made_by, self._token, *self._wanted.facts())

    def load(self, key: bytes) -> CompiledPartition | None:
        """Return a partition after its first run; None if no usable partition is stored."""
        found = self._store.load(key)
        if found is None:
            return None
        try:
            artifact = Artifact.read(found, self._store.block)
            check(artifact, self._wanted.graph, self._wanted.device.info)
            if artifact.fast_compiled and not self._wanted.fast_compile:
                return None
            outside = artifact.outside_blocks
            if not all(map(self._store.has_block, outside)):
                raise ValueError("blocks of its constants are missing")
            compiled = self._loaded(artifact)
            self._store.touch_blocks(outside)
            return compiled
        except (
            DeviceLostError
        ):  # its implementations are now excluded, which changes the file's name
            raise
        except (ValueError, LitegpuError) as error:
            self._store.discard(key, str(error))
            return None

    def _loaded(self, artifact: Artifact) -> CompiledPartition:
        executable = self._wanted.device.load(artifact.program, artifact.binaries)
        executable.fast_compiled = artifact.fast_compiled
        ends = artifact.inputs, artifact.outputs
        constants = constant_outputs(self._wanted.graph)
        compiled = CompiledPartition.create(*ends, executable, artifact.facts, constants)
        try:
            compiled.warm_up(self._wanted.device)
        except BaseException:
            compiled.close()
            raise
        return compiled

    def store(self, key: bytes, compiled: CompiledPartition) -> None:
        """Store a partition that has run, unless its constants exceed the cache's size limit.

        Raises ExecutionError if the device fails.
        """
        nbytes, limit = compiled.program.distinct_bytes, config.cache_limit()
        if nbytes > limit:
            report_once(
                logging.WARNING if self._requested else logging.INFO,
                "A partition is not cached:",
                f"its weights have {shown_size(nbytes)}, and the cache at most "
                f"{shown_size(limit)}. Set a larger LITEGPU_CACHE_LIMIT (MiB).",
            )
            return
        wanted = self._wanted
        artifact = Artifact.of(compiled, wanted.device.info, wanted.policy)
        self._store.store(key, artifact.sections(), artifact.outside_blocks)

    def improve(self, key: bytes, binaries: Mapping[str, bytes]) -> None:
        """Replace the binaries of a stored partition by optimized binaries, if it is stored."""
        found = self._store.load(key)
        if found is not None:
            artifact = Artifact.read(found, self._store.block)
            artifact = replace(artifact, fast_compiled=False, binaries=binaries)
            with contextlib.suppress(ValueError):  # blocks were removed in the meantime
                self._store.store(key, artifact.sections(), artifact.outside_blocks)
