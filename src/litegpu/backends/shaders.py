"""What the backends that compile one shader per kernel have in common."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from litegpu.backends.base import Dispatch, Program
from litegpu.codegen import KernelText
from litegpu.codegen.glsl import GLSLDialect, Groups, fold

_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class Shader:
    """A kernel, and its number of work groups when they are folded into two axes."""

    kernel: str
    folded: Groups | None = None


class Recent(Generic[_Value]):
    """What was made for the texts that were asked for most recently."""

    def __init__(self, most: int = 256) -> None:
        """Keep at most so many."""
        self._most = most
        self._made: OrderedDict[str, _Value] = OrderedDict()

    def get(self, text: str, make: Callable[[], _Value]) -> _Value:
        """Return what was made for a text, or what `make` makes now."""
        if text not in self._made:
            self._made[text] = make()
            if len(self._made) > self._most:
                self._made.popitem(last=False)
        self._made.move_to_end(text)
        return self._made[text]

    def clear(self) -> None:
        """Forget everything."""
        self._made.clear()


def shader_of(dispatch: Dispatch, limit: int) -> tuple[Shader, Groups]:
    """Return the shader of a launch, and its work groups on each axis, none above `limit`."""
    x, y, z = (g // b for g, b in zip(dispatch.global_size, dispatch.local_size, strict=True))
    if max(x, y, z) <= limit:
        return Shader(dispatch.kernel), (x, y, z)
    return Shader(dispatch.kernel, (x, y, z)), fold((x, y, z), limit)


def shaders_of(program: Program, limit: int) -> list[Shader]:
    """Return all shaders that a program needs: one for each kernel, and the folded ones."""
    plain = [Shader(kernel.name) for kernel in program.kernels]
    launched = [shader_of(dispatch, limit)[0] for dispatch in program.dispatches]
    return list(dict.fromkeys(plain + launched))


def sources_of(
    program: Program, dialect: GLSLDialect, limit: int
) -> Iterator[tuple[Shader, KernelText, str]]:
    """Yield each shader with its kernel and its source."""
    texts = {kernel.name: kernel for kernel in program.kernels}
    for shader in shaders_of(program, limit):
        text = texts[shader.kernel]
        yield shader, text, dialect.prelude + dialect.kernel(text, shader.folded)


def refused(title: str, kernel: str, log: str) -> str:
    """Return the message about a shader that a device's compiler refuses."""
    return (
        f"Device {title} refuses the kernel {kernel}: {log.strip()}. LITEGPU_DEBUG=2 prints its "
        "source; precision='fp32' or another backend may help."
    )


def too_little_memory(title: str, sizes: Sequence[int], cause: str) -> str:
    """Return the message about buffers that a device cannot provide."""
    return (
        f"Device {title} cannot provide {sum(sizes)} bytes: {cause}. Close other programs, use "
        "precision='fp16' or a smaller batch."
    )


_ANEW = (
    "Make the interpreter and its delegate anew, which opens the device anew; if it happens again, "
    "use another device or no delegate."
)


def is_lost(title: str, cause: str) -> str:
    """Return the message about a device that failed for good."""
    return f"Device {title} is lost: {cause}. {_ANEW}"


def timed_out(title: str, seconds: float | None) -> str:
    """Return the message about an invoke that took too long."""
    return (
        f"Device {title} did not answer within invoke_timeout_ms ({(seconds or 0) * 1000:g} ms) "
        f"and is given up as lost. {_ANEW}"
    )
