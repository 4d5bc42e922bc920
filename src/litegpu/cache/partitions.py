"""Compiled partitions, from the folder where it has them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from litegpu.backends.base import Device
from litegpu.cache.artifact import Artifact
from litegpu.cache.checks import check
from litegpu.cache.fingerprint import device_facts, fingerprint, graph_facts, host_facts
from litegpu.cache.source import source_digest
from litegpu.cache.store import ArtifactStore, CacheFolder
from litegpu.engine.compiled import CompiledPartition
from litegpu.engine.partition import constant_outputs
from litegpu.errors import LitegpuError
from litegpu.graph import Graph
from litegpu.numeric_policy import NumericPolicy
from litegpu.version import __version__


class CachedPartitions:
    """The compiled partitions of one device and policy, as a folder has them.

    What a file has is not believed: `ArtifactStore` sees that it is what was written, `checks` that
    it binds nothing which is not there. All else is compiled anew, and replaces the file.
    """

    def __init__(
        self, folder: CacheFolder, device: Device, policy: NumericPolicy, tuned: object
    ) -> None:
        """Keep partitions in a folder; `tuned` is what decides about measured choices."""
        self._store = ArtifactStore(*folder)
        self._device, self._policy = device, policy
        code = (__version__, source_digest())
        made_by = (host_facts(), device_facts(device.info), device.origin)
        self._key: tuple[Any, ...] = (*code, *made_by, folder.token, policy, tuned)

    def key(self, graph: Graph, precise: Collection[int] = ()) -> bytes:
        """Return the fingerprint of a partition whose values `precise` are never rounded."""
        return fingerprint(*self._key, graph_facts(graph), sorted(precise))

    def load(self, key: bytes, graph: Graph) -> CompiledPartition | None:
        """Return a partition after its first run, None where there is none that works."""
        found = self._store.load(key)
        if found is None:
            return None
        try:
            artifact = Artifact.read(found)
            check(artifact, graph, self._device.info)
            return self._loaded(artifact, graph)
        except (ValueError, LitegpuError) as error:
            self._store.discard(key, str(error))
            return None

    def _loaded(self, artifact: Artifact, graph: Graph) -> CompiledPartition:
        executable = self._device.load(artifact.program, artifact.binaries)
        ends = artifact.inputs, artifact.outputs
        constants = constant_outputs(graph)
        compiled = CompiledPartition.create(*ends, executable, artifact.facts, constants)
        try:
            compiled.warm_up()
        except BaseException:
            compiled.close()
            raise
        return compiled

    def store(self, key: bytes, compiled: CompiledPartition) -> None:
        """Keep a partition that has run. Raises ExecutionError when the device fails."""
        artifact = Artifact.of(compiled, self._device.info, self._policy)
        self._store.store(key, artifact.sections())
