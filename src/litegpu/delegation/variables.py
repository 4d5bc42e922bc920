"""The variables of an interpreter, in the memory of a device between invokes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from litegpu.backends.base import Device
from litegpu.backends.buffers import Buffer
from litegpu.errors import InterpreterError
from litegpu.graph import Node, Value
from litegpu.ops.common.facts import Array
from litegpu.ops.variables import CALL_ONCE, Name, first_values


class Variables:
    """What the partitions of all graphs of a model read and assign.

    Each variable has two buffers: a run reads the one and writes the other, which then changes
    places with it. So a run that fails leaves the variable as it was.
    """

    def __init__(self, values: Mapping[Name, Value]) -> None:
        """Hold variables of the types and shapes of these values; none has a value yet."""
        self.values = values
        self._buffers: dict[Name, tuple[Device, list[Buffer]]] = {}
        self._called = set[int]()
        self._failed: BaseException | None = None

    def start(self, nodes: Iterable[Node], device: Device) -> None:
        """Run those of some CALL_ONCE that have not run yet, in any graph."""
        if self._failed is not None:
            raise InterpreterError(
                f"A graph that shares variables with this one does not run: {self._failed} "
                "Use the interpreter without the delegate."
            )
        for node in nodes:
            number = node.params["init_subgraph_index"]
            if node.op == CALL_ONCE and number not in self._called:
                for name, array in (first_values(node.graphs[0]) or {}).items():
                    self._write(name, array, device)
                self._called.add(number)

    def _write(self, name: Name, array: Array, device: Device) -> None:
        if name in self.values:  # others are never read
            self._on(name, device)[0].write(array)

    def _on(self, name: Name, device: Device) -> list[Buffer]:
        """Return the buffers of a variable on a device, with its value if it has any."""
        found = self._buffers.get(name)
        if found is not None and found[0] is device:
            return found[1]
        value = self.values[name]
        nbytes = value.elements * value.dtype.size
        buffers = [device.allocate(nbytes) for _ in range(2)]
        if found is not None:
            buffers[0].write(found[1][0].read())
        self._buffers[name] = device, buffers
        return buffers

    def present(self, name: Name, device: Device) -> Buffer:
        """Return what a run reads. Raises InterpreterError for a variable without a value."""
        if name not in self._buffers:
            raise InterpreterError(
                f"The variable '{name[1]}' is read before it has a value. Invoke the signature "
                "that assigns one first."
            )
        return self._on(name, device)[0]

    def following(self, name: Name, device: Device) -> Buffer:
        """Return what a run writes."""
        return self._on(name, device)[1]

    def turn(self, names: Collection[Name]) -> None:
        """Let what a run has written be what the next one reads."""
        for name in names:
            self._buffers[name][1].reverse()

    def forget(self) -> None:
        """Let variables have no value, because their device is lost."""
        self._buffers.clear()
        self._called.clear()

    def fail(self, error: BaseException) -> None:
        """Let no partition run, because a graph with some of these variables is on the CPU."""
        self._failed = error
