"""The files of models that the options of a task name."""

from __future__ import annotations

from litegpu.errors import TaskError
from litegpu.files import open_content
from litegpu.tasks.core.base_options import BaseOptions
from litegpu.zoo import resolve_model

_BUFFER = "model_asset_buffer"


def model_of(options: BaseOptions) -> bytes:
    """Return the bytes of the only model.

    Raises:
        TaskError: the options name no file.
        ModelError: the file does not exist, or it is a bundle with several models.
    """
    if options.model_asset_path is not None:
        return resolve_model(options.model_asset_path, f"{_BUFFER} takes the bytes of a file.")
    content = _buffer(options)
    bundle = open_content(_BUFFER, memoryview(content))
    return content if bundle is None else bytes(bundle.model().view())


def _buffer(options: BaseOptions) -> bytes:
    if options.model_asset_buffer is None:
        raise TaskError(
            "The base options name no model. Give model_asset_path or model_asset_buffer."
        )
    return bytes(options.model_asset_buffer)
