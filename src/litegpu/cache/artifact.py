"""The contents of a cache file: a compiled partition, divided into sections."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from litegpu.backends.base import DeviceInfo
from litegpu.backends.constant_blocks import ConstantBlock
from litegpu.backends.execution import SMALL_CONSTANTS
from litegpu.backends.program import BufferRange, Launch, Program, Update
from litegpu.cache.codec import decode, encode
from litegpu.codegen import KernelText
from litegpu.engine.compiled import CompiledPartition
from litegpu.engine.facts import PartitionFacts
from litegpu.numeric_policy import NumericPolicy
from litegpu.version import __version__

_LENGTHS = struct.Struct("<QQ")
"""Sizes in bytes of the description and of the constants after it."""
_ALIGNMENT = 4096
"""Offset of the constants from the start of the sections."""


@dataclass(frozen=True, slots=True)
class Description:
    """The metadata of an artifact, without constants and binaries; its fields are the schema."""

    version: str
    """The version of litegpu, which is the first field in all versions; see `made_by`."""
    device: str
    precision: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    kernels: tuple[KernelText, ...]
    launches: tuple[Launch, ...]
    memory_bytes: int
    program_inputs: tuple[BufferRange, ...]
    program_outputs: tuple[BufferRange, ...]
    sole_writers: Mapping[int, tuple[int, int]]
    readers: Mapping[int, tuple[tuple[int, int], ...]]
    updates: Mapping[int, Update]
    facts: PartitionFacts
    fast_compiled: bool
    """Whether the binaries were compiled quickly, with fewer optimizations."""
    blocks: tuple[tuple[int, str], ...]
    """The size in bytes and the digest of each block of constants."""
    blocks_outside: bool
    """Whether each block has a file of its own; otherwise blocks follow the small constants."""
    binaries: Mapping[str, int]
    """The size of each binary in bytes; binaries are last, in this order."""


@dataclass(frozen=True, slots=True)
class Artifact:
    """A compiled partition without its device: program, constants, binaries and metadata.

    `version` (of litegpu), `device` and `precision` describe the artifact's origin to users.
    """

    version: str
    device: str
    precision: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    program: Program
    facts: PartitionFacts
    fast_compiled: bool
    binaries: Mapping[str, bytes]

    @classmethod
    def of(cls, compiled: CompiledPartition, info: DeviceInfo, policy: NumericPolicy) -> Artifact:
        """Return the artifact of a partition that has already run. Raises ExecutionError."""
        executable = compiled.executable
        ends = compiled.inputs, compiled.outputs
        device = f"{info.backend} {info.name}"
        origin = __version__, device, policy.title
        code = executable.fast_compiled, executable.binaries()
        return cls(*origin, *ends, compiled.program, compiled.facts, *code)

    @property
    def outside_blocks(self) -> tuple[ConstantBlock, ...]:
        """The distinct blocks that are not in the sections; the host does not keep them."""
        if self.program.constant_bytes <= SMALL_CONSTANTS:
            return ()
        return tuple({block.digest: block for block in self.program.blocks}.values())

    def sections(self) -> list[bytes | memoryview]:
        """Return the sections of the file in order, without `outside_blocks`."""
        program = self.program
        outside = bool(self.outside_blocks)
        blocks = [] if outside else [block.read().data for block in program.blocks]
        description = encode(
            Description(
                self.version,
                self.device,
                self.precision,
                self.inputs,
                self.outputs,
                program.kernels,
                program.launches,
                program.memory_bytes,
                program.inputs,
                program.outputs,
                program.sole_writers,
                program.readers,
                program.updates,
                self.facts,
                self.fast_compiled,
                tuple((block.nbytes, block.digest) for block in program.blocks),
                outside,
                {name: len(binary) for name, binary in self.binaries.items()},
            )
        )
        lengths = _LENGTHS.pack(len(description), program.constants.nbytes)
        gap = -(len(lengths) + len(description)) % _ALIGNMENT
        constants = np.ascontiguousarray(program.constants).data
        return [lengths, description, bytes(gap), constants, *blocks, *self.binaries.values()]

    @classmethod
    def read(
        cls,
        data: npt.NDArray[np.uint8],
        outside: Callable[[int, str], ConstantBlock] = ConstantBlock.missing,
    ) -> Artifact:
        """Return the artifact in the sections; its constants are views. Raises ValueError.

        `outside` returns a block that is not in the sections, by its size and digest. The method
        checks the types of all fields; `checks.check` checks the values.
        """
        view = data.data
        described, constant_bytes = _lengths(view)
        start = _LENGTHS.size + described
        start += -start % _ALIGNMENT
        end = start + constant_bytes
        if end > len(view):
            raise ValueError(f"the sections need {end} bytes, but the file has {len(view)}")
        found = describe(data)
        blocks, binaries = [], {}
        for size, digest in found.blocks:
            if size < 0:
                raise ValueError(f"a block of constants has {size} bytes")
            if found.blocks_outside:
                blocks.append(outside(size, digest))
            else:
                blocks.append(ConstantBlock.of(data[end : end + size], digest))
                end += size
        for name, size in found.binaries.items():
            binaries[name] = bytes(view[end : end + size]) if size >= 0 else b""
            end += size
        if end != len(view):
            raise ValueError(f"the sections need {end} bytes, but the file has {len(view)}")
        program = Program(
            found.kernels,
            found.launches,
            found.memory_bytes,
            data[start : start + constant_bytes],
            found.program_inputs,
            found.program_outputs,
            found.sole_writers,
            found.readers,
            found.updates,
            tuple(blocks),
        )
        ends = found.inputs, found.outputs
        origin = found.version, found.device, found.precision
        return cls(*origin, *ends, program, found.facts, found.fast_compiled, binaries)


def describe(data: npt.NDArray[np.uint8]) -> Description:
    """Return the description at the start of sections. Raises ValueError."""
    return decode(Description, _description(data))


def made_by(data: npt.NDArray[np.uint8]) -> str:
    """Return the version of litegpu that wrote the sections, even if they are unreadable.

    The result is empty if the sections do not contain a version.
    """
    try:
        version, *_ = json.loads(_description(data))
    except (ValueError, TypeError, RecursionError):
        return ""
    return version if isinstance(version, str) else ""


def _description(data: npt.NDArray[np.uint8]) -> bytes:
    described, _ = _lengths(data.data)
    return data[_LENGTHS.size : _LENGTHS.size + described].tobytes()


def _lengths(view: memoryview) -> tuple[int, int]:
    if len(view) < _LENGTHS.size:
        raise ValueError("the file is truncated")
    described, constant_bytes = _LENGTHS.unpack_from(view)
    return described, constant_bytes
