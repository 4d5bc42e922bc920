"""The exceptions that litegpu raises. Every error message states the wrong value and the remedy."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import TimeoutError as FutureTimeoutError


class LitegpuError(Exception):
    """Base of all litegpu errors.

    `remedy` is a command that fixes the cause of the error, if litegpu knows one.
    """

    remedy: str = ""


class OptionsError(LitegpuError, ValueError):
    """An option, flag or environment variable has an invalid value."""


class UnsupportedDeviceError(LitegpuError, RuntimeError):
    """The requested backend or device is not usable on this machine."""


class CompilationError(LitegpuError, RuntimeError):
    """A kernel is not available: the device or its compiler rejects it."""


class KernelError(CompilationError):
    """A device rejects kernels: the kernels do not compile, or exceed the limits of the device.

    `logs` maps each kernel name to the text of the compiler or driver; `reasons` has the line of
    that text with the reason.
    """

    def __init__(self, subject: str, logs: Mapping[str, str]) -> None:
        """Store the name of the device or compiler, and the log of each kernel."""
        shown = "; ".join(f"{name}: {log.strip().rstrip('.')}" for name, log in logs.items())
        super().__init__(
            f"{subject} rejects {'kernels' if len(logs) > 1 else 'a kernel'}: {shown}. "
            "LITEGPU_DEBUG=2 prints the sources; precision='fp32' or another backend may help."
        )
        self.logs = dict(logs)
        self.reasons = {name: telling_line(log) for name, log in logs.items()}


class DeviceMemoryError(LitegpuError, MemoryError):
    """The device could not provide the memory that a partition needs."""


class ExecutionError(LitegpuError, RuntimeError):
    """The device failed while it ran a partition."""


class CudaError(ExecutionError):
    """A call of the CUDA driver or compiler failed; the message names the call and the code."""

    launch: int | None = None
    """The index of the rejected launch in its graph; None if no launch was rejected."""

    def __init__(self, message: str, code: int = 0) -> None:
        """Store the message, and the error code of the driver if there is one."""
        super().__init__(message)
        self.code = code


class DeviceLostError(ExecutionError):
    """The device was lost during a run.

    The next invoke reopens the lost device or opens another one, if possible.

    `reason` is the error message without the remedy.
    """

    def __init__(self, reason: str, advice: str = "") -> None:
        """Store the reason, which is a complete sentence, and the remedy."""
        super().__init__(f"{reason} {advice}".strip())
        self.reason = reason


class InvokeTimeoutError(ExecutionError):
    """An invoke took longer than `invoke_timeout_ms`; the device counts as lost."""


class RunTimeoutError(InvokeTimeoutError, FutureTimeoutError):
    """A submitted run has not finished within the timeout of `result`; the run continues.

    The class also derives from TimeoutError of concurrent.futures (in Python 3.10, a separate
    class).
    """


class BindingError(LitegpuError, ValueError):
    """A buffer has the wrong size or device for a copy or a tensor."""


class CompiledModelError(LitegpuError, RuntimeError, ValueError):
    """A CompiledModel has no such signature or tensor, or a buffer has the wrong shape or type.

    LiteRT raises RuntimeError for some of these errors and ValueError for others.
    """


class ForkedProcessError(LitegpuError, RuntimeError):
    """A forked child uses a GPU API that its parent process had opened."""


class InterpreterError(LitegpuError, RuntimeError):
    """The TensorFlow Lite runtime rejects a call of the delegate."""


class DelegateLibraryError(LitegpuError, RuntimeError):
    """The shared library of an external delegate is missing, invalid, fails or crashes."""


class ModelError(LitegpuError, ValueError):
    """A model file is missing, damaged, or not a TensorFlow Lite model."""


class TaskError(LitegpuError, ValueError):
    """An option, a picture or a timestamp is not valid for a task, or the task is closed."""


class LanguageModelError(LitegpuError, ValueError):
    """A prompt, a message or an argument is not valid for a language model."""


class CacheFullError(LanguageModelError):
    """The tokens of a session do not fit the cache of the language model."""


class OperationError(LitegpuError, ValueError):
    """A user-defined operation cannot be registered, or violates its interface."""


class DownloadError(LitegpuError, OSError):
    """A file could not be downloaded, or has a wrong checksum."""


class FileError(LitegpuError, OSError):
    """A file that the user named cannot be read or written, or has another format."""


class WorkerError(LitegpuError, RuntimeError):
    """A process that ran samples failed, and no other process could take over its work."""


class RequestError(LitegpuError, ValueError):
    """A server cannot answer a request; `status` is the HTTP status."""

    def __init__(self, message: str, status: int = 400) -> None:
        """Store the message and the HTTP status."""
        super().__init__(message)
        self.status = status


class MissingDependencyError(LitegpuError, ImportError):
    """An optional Python package is needed but not installed."""


def lacks_threads(error: BaseException) -> bool:
    """Whether an error means that no thread could be started: Python has no type for this error."""
    return isinstance(error, RuntimeError) and "new thread" in str(error)


def without_threads(cause: BaseException) -> UnsupportedDeviceError:
    """Return the error for a failure to start a thread."""
    return UnsupportedDeviceError(
        f"litegpu cannot start a thread ({cause}). End other threads and "
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
    r"""Return the line of a compiler's log that states the error: the first line with an error.

    >>> telling_line("a.cu(1): warning: unused\n  a.cu(2): error: no such function\n")
    'a.cu(2): error: no such function'
    """
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = (line for line in lines if "error:" in line.lower())
    return next(errors, lines[0] if lines else "no reason is given")


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and its causes, each once, since chains of causes may be circular."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__ or link.__context__


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """Return a hint with the closest match for an unknown `word`, and a list of all `choices`."""
    known = list(choices)
    close = closest(word, known)
    hint = f" Did you mean '{close}'?" if close else ""
    return f"{hint} Known: {', '.join(known)}."


def closest(word: str, choices: Iterable[str]) -> str | None:
    """Return the choice most similar to an unknown `word`; None if none is similar.

    A prefix or suffix of a longer choice is almost as similar as the whole choice: `threads`
    matches `num_threads`, and `mobilnet_v1` matches `mobilenet_v1_1.0_224`.
    """
    best = max(choices, key=lambda choice: _likeness(word.lower(), choice.lower()), default=None)
    return best if best and _likeness(word.lower(), best.lower()) else None


def _likeness(word: str, choice: str) -> float:
    """Return the similarity of two words, at most 1; 0 if the similarity is too low for a hint."""
    # A common prefix of all choices is ignored: it would make any two choices similar.
    word, choice = word.removeprefix("--"), choice.removeprefix("--")
    whole = difflib.SequenceMatcher(None, word, choice).ratio()
    length = len(word)
    beginning = choice[:length] if length >= _SHORTEST_BEGINNING else ""
    end = choice[-length:] if length >= _SHORTEST_END else ""
    part = max(difflib.SequenceMatcher(None, word, each).ratio() for each in (beginning, end))
    return max(
        whole if whole >= _MIN_WHOLE else 0.0,
        part * _PART_COUNTS if part >= _MIN_PART else 0.0,
    )


_MIN_WHOLE, _MIN_PART = 0.6, 0.8
_SHORTEST_BEGINNING, _SHORTEST_END = 5, 3
_PART_COUNTS = 0.95
