"""Every error litegpu raises: what was wrong, with the value, and what to do about it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import TimeoutError as FutureTimeoutError


class LitegpuError(Exception):
    """Base of all litegpu errors. `remedy` is a command that would help, where one is known."""

    remedy: str = ""


class OptionsError(LitegpuError, ValueError):
    """An option, flag or environment variable has a value that cannot be used."""


class UnsupportedDeviceError(LitegpuError, RuntimeError):
    """The requested backend or device is not usable on this machine."""


class CompilationError(LitegpuError, RuntimeError):
    """A kernel cannot be had: the device's compiler or the device itself rejects it."""


class KernelError(CompilationError):
    """A device rejects kernels: they do not compile, or need more than it has.

    `logs` has what the compiler or the driver says of each, by the names of the kernels, and
    `reasons` the line of it that says why.
    """

    def __init__(self, subject: str, logs: Mapping[str, str]) -> None:
        """Take who rejects the kernels, and what is said of each of them."""
        shown = "; ".join(f"{name}: {log.strip().rstrip('.')}" for name, log in logs.items())
        super().__init__(
            f"{subject} rejects {'kernels' if len(logs) > 1 else 'a kernel'}: {shown}. "
            "LITEGPU_DEBUG=2 prints the sources; precision='fp32' or another backend may help."
        )
        self.logs = dict(logs)
        self.reasons = {name: telling_line(log) for name, log in logs.items()}


class DeviceMemoryError(LitegpuError, MemoryError):
    """The device could not provide the memory a partition needs."""


class ExecutionError(LitegpuError, RuntimeError):
    """The device failed while it ran a partition."""


class CudaError(ExecutionError):
    """A call of the CUDA driver or of its compiler failed; names the call and the code."""

    launch: int | None = None
    """Which launch was rejected, by its number among those of a graph; None: it was no launch."""

    def __init__(self, message: str, code: int = 0) -> None:
        """Take the message, and the driver's code where it gave one."""
        super().__init__(message)
        self.code = code


class DeviceLostError(ExecutionError):
    """The device failed for good. The next invoke opens it anew, or another one, if it can.

    `reason` is what happened: the message without its advice.
    """

    def __init__(self, reason: str, advice: str = "") -> None:
        """Take what happened, a sentence, and what would help."""
        super().__init__(f"{reason} {advice}".strip())
        self.reason = reason


class InvokeTimeoutError(ExecutionError):
    """An invoke took longer than `invoke_timeout_ms`; the device is given up as lost."""


class RunTimeoutError(InvokeTimeoutError, FutureTimeoutError):
    """A run that was submitted has not ended in the time that its `result` was given; it goes on.

    What concurrent.futures raises, too: TimeoutError (in Python 3.10 its own class of that name).
    """


class BindingError(LitegpuError, ValueError):
    """A buffer does not fit what is to be copied, or what it is bound to."""


class CompiledModelError(LitegpuError, RuntimeError, ValueError):
    """A CompiledModel has no such signature or tensor, or its buffers do not fit.

    LiteRT raises RuntimeError for some of these and ValueError for others.
    """


class ForkedProcessError(LitegpuError, RuntimeError):
    """A GPU API that a parent process had opened was asked for in a child that was forked."""


class InterpreterError(LitegpuError, RuntimeError):
    """The TensorFlow Lite runtime refuses what the delegate asks of it."""


class DelegateLibraryError(LitegpuError, RuntimeError):
    """A shared library that was named as a delegate is missing, is none, refuses or crashes."""


class ModelError(LitegpuError, ValueError):
    """A model file is missing, damaged, or not a TensorFlow Lite model."""


class OperationError(LitegpuError, ValueError):
    """An operation of a user's cannot be registered, or does not do what it has to."""


class DownloadError(LitegpuError, OSError):
    """A file could not be downloaded, or is not the file that was expected."""


class FileError(LitegpuError, OSError):
    """A file that the user named cannot be read, cannot be written, or holds something else."""


class WorkerError(LitegpuError, RuntimeError):
    """A process that ran samples failed or was lost, and others could not take its work."""


class MissingDependencyError(LitegpuError, ImportError):
    """An optional Python package is needed and not installed."""


def lacks_threads(error: BaseException) -> bool:
    """Whether Python could start no thread: it has no type for that."""
    return isinstance(error, RuntimeError) and "new thread" in str(error)


def without_threads(cause: BaseException) -> UnsupportedDeviceError:
    """Return the error for a system that starts no more threads."""
    return UnsupportedDeviceError(
        f"litegpu needs a thread, and the system starts no more ({cause}). End other threads and "
        "processes, or raise the limit: `ulimit -u`, or pids of a container."
    )


def missing_dependency(
    package: str, extra: str, purpose: str, why: str = "is not installed. Install it"
) -> MissingDependencyError:
    """Return the error for an optional `package`, naming the pip command that provides it."""
    remedy = f"pip install 'litegpu[{extra}]'"
    found = MissingDependencyError(
        f"{purpose} needs the Python package '{package}', which {why} with: {remedy}"
    )
    found.remedy = remedy
    return found


def telling_line(log: str) -> str:
    r"""Return the line of a compiler's log that tells what is wrong: the first with an error.

    >>> telling_line("a.cu(1): warning: unused\n  a.cu(2): error: no such function\n")
    'a.cu(2): error: no such function'
    """
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = (line for line in lines if "error:" in line.lower())
    return next(errors, lines[0] if lines else "no reason is given")


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and what it follows from, each once: an error may be its own cause."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__ or link.__context__


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """Return a closest-match hint for an unknown `word`, listing all `choices`."""
    known = list(choices)
    close = closest(word, known)
    hint = f" Did you mean '{close}'?" if close else ""
    return f"{hint} Known: {', '.join(known)}."


def closest(word: str, choices: Iterable[str]) -> str | None:
    """Return the choice that an unknown `word` resembles most, None if it resembles none.

    The beginning or the end of a longer choice counts nearly as much as all of it: `threads` is
    `num_threads`, and `mobilnet_v1` is `mobilenet_v1_1.0_224`.
    """
    best = max(choices, key=lambda choice: _likeness(word.lower(), choice.lower()), default=None)
    return best if best and _likeness(word.lower(), best.lower()) else None


def _likeness(word: str, choice: str) -> float:
    """Return how much of two words is the same, up to 1; 0 where it is too little for a hint."""
    # Without a prefix that all choices have: it would make any two alike.
    word, choice = word.removeprefix("--"), choice.removeprefix("--")
    whole = difflib.SequenceMatcher(None, word, choice).ratio()
    length = len(word)
    beginning = choice[:length] if length >= _SHORTEST_BEGINNING else ""
    end = choice[-length:] if length >= _SHORTEST_END else ""
    part = max(difflib.SequenceMatcher(None, word, each).ratio() for each in (beginning, end))
    return max(
        whole if whole >= _LEAST_WHOLE else 0.0,
        part * _PART_COUNTS if part >= _LEAST_PART else 0.0,
    )


_LEAST_WHOLE, _LEAST_PART = 0.6, 0.8
_SHORTEST_BEGINNING, _SHORTEST_END = 5, 3
_PART_COUNTS = 0.95
