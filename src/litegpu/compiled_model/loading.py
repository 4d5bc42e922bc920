"""Loads the model of a CompiledModel: file, image input, and an interpreter for each context."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping
from typing import Any

from litegpu.compiled_model.contexts import ContextPool, ModelContext
from litegpu.compiled_model.fitting import count
from litegpu.compiled_model.instance import Instance
from litegpu.delegation.delegate import GpuDelegate
from litegpu.errors import CompiledModelError, ModelError, OptionsError, did_you_mean
from litegpu.options import GpuDelegateOptions
from litegpu.pictures import KEYWORDS, with_picture_input
from litegpu.runtime_abi import interpreter as runtime

Source = tuple[bytes, Mapping[str, Any] | None, int | None]
"""The model's bytes, the delegate's options (None for no GPU), and the number of CPU threads."""
_OWN = ("hardware_accel", "environment", "options", "contexts", "chunks", "pieces", "quantize")
_OF_THE_DELEGATE = ("model", "on_progress")


def content_of(model_data: Any) -> bytes:
    """Return the bytes of any buffer. Raises CompiledModelError for an object without bytes."""
    try:
        return model_data if isinstance(model_data, bytes) else memoryview(model_data).tobytes()
    except TypeError as error:
        raise CompiledModelError(
            f"from_buffer takes the bytes of a .tflite file, not {model_data!r}. "
            "CompiledModel.from_file takes its path."
        ) from error


def chunk_count(chunks: int | None, pieces: int | None) -> int:
    """Return the number of chunks; `pieces` is the deprecated name of the keyword.

    Raises CompiledModelError for an invalid number, or if both keywords are passed.
    """
    if pieces is None:
        return count("chunks", 1 if chunks is None else chunks)
    if chunks is not None:
        raise CompiledModelError("pieces is the old name of chunks. Use chunks alone.")
    warnings.warn("pieces is deprecated. Use chunks.", DeprecationWarning, stacklevel=4)
    return count("pieces", pieces)


def picture_keywords(keywords: dict[str, Any]) -> dict[str, Any]:
    """Remove the keywords of the image input, and return them.

    Raises OptionsError for unknown keywords, CompiledModelError for image keywords without
    `input_format`.
    """
    fields = (each.name for each in dataclasses.fields(GpuDelegateOptions))
    known = (*_OWN, *KEYWORDS, *_OF_THE_DELEGATE, *fields)
    for name in keywords:
        if name not in known:
            raise OptionsError(f"Unknown option '{name}'.{did_you_mean(name, known)}")
    picture = {name: keywords.pop(name) for name in KEYWORDS if name in keywords}
    if picture and "input_format" not in picture:
        raise CompiledModelError(
            f"{', '.join(picture)}: these are options of an image input. Give input_format, too, "
            "such as 'rgb8'."
        )
    return picture


def with_pictures(content: bytes, keywords: Mapping[str, Any]) -> bytes:
    """Return the model with an image input. Raises CompiledModelError if that is impossible."""
    try:
        return with_picture_input(content, **keywords)
    except ModelError as error:
        raise CompiledModelError(str(error)) from error


def contexts_of(source: Source, wanted: int) -> ContextPool:
    """Compile a model for `wanted` runs in flight. Raises errors of GpuDelegate and the runtime."""
    number = count("contexts", wanted)
    main = _instance(*source)
    if all(map(main.runs_directly, main.signatures)):
        instances = [main] * number
    else:
        instances = [main, *(_instance(*source) for _ in range(number - 1))]
    return ContextPool(ModelContext(*each) for each in zip(instances, range(number), strict=True))


def _instance(content: bytes, gpu: Mapping[str, Any] | None, threads: int | None) -> Instance:
    delegate = GpuDelegate(**gpu) if gpu is not None else None
    try:
        return Instance(runtime.interpreter(content, delegate, threads), delegate)
    except ModelError as error:
        cause = delegate.error if delegate is not None else None
        raise CompiledModelError(f"{error}{_of_the_gpu(delegate, str(error))}") from (
            cause or error
        )


def _of_the_gpu(delegate: GpuDelegate | None, refused: str) -> str:
    """Return why the GPU did not run operations for which the runtime has no kernel, or ""."""
    if delegate is None:
        return ""
    if delegate.error is not None:
        return f" The model also failed on the GPU: {delegate.error}"
    rejected = delegate.report.rejected if delegate.report is not None else ()
    for node in rejected:
        if "unresolved custom op" in refused and node.op in refused:
            return (
                f" On the GPU: {node.op}: {node.reason} litegpu.register_op makes custom "
                "operations known."
            )
    return ""
