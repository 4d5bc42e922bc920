"""The variables of an interpreter, stored in a device's memory between invokes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from litegpu.backends.base import Device
from litegpu.backends.buffers import Buffer
from litegpu.errors import InterpreterError
from litegpu.graph import Node, Value
from litegpu.ops.common.facts import Array
from litegpu.ops.variables import CALL_ONCE, Name, first_values


class Variables:
    """The variables that the partitions of a model's graphs read and assign.

    Each variable has two buffers: a run reads the first and writes the second. After the run, the
    buffers are swapped. A failed run therefore leaves the variable unchanged.
    """

    def __init__(self, values: Mapping[Name, Value]) -> None:
        """Create uninitialized variables with the dtypes and shapes of `values`."""
        self.values = values
        self._buffers: dict[Name, tuple[Device, list[Buffer]]] = {}
        self._called = set[int]()
        self._failed: BaseException | None = None

    def start(self, nodes: Iterable[Node], device: Device) -> None:
        """Run the graphs of CALL_ONCE nodes that have not run yet."""
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
        if name in self.values:  # no node reads other variables
            self._on(name, device)[0].write(array)

    def _on(self, name: Name, device: Device) -> list[Buffer]:
        """Return a variable's two buffers on a device; the first contains the value, if any."""
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
        """Return the buffer that a run reads. Raises InterpreterError for an unset variable."""
        if name not in self._buffers:
            raise InterpreterError(
                f"The variable '{name[1]}' is read before it has a value. First invoke the "
                "signature that assigns a value."
            )
        return self._on(name, device)[0]

    def following(self, name: Name, device: Device) -> Buffer:
        """Return the buffer that a run writes."""
        return self._on(name, device)[1]

    def turn(self, names: Collection[Name]) -> None:
        """Swap the buffers of variables after a run, so that the next run reads the new values."""
        for name in names:
            self._buffers[name][1].reverse()

    def forget(self) -> None:
        """Mark all variables as uninitialized, because their device is lost."""
        self._buffers.clear()
        self._called.clear()

    def fail(self, error: BaseException) -> None:
        """Make partitions with variables fail, because the CPU runs a graph that uses some."""
        self._failed = error
