"""Reads the model files that are named in the options of a task."""

from __future__ import annotations

import os
from collections.abc import Sequence

from litegpu.errors import ModelError, TaskError
from litegpu.files import Container, open_container, open_content
from litegpu.tasks.core.base_options import BaseOptions
from litegpu.zoo import resolve_model

_BUFFER = "model_asset_buffer"


def model_of(options: BaseOptions) -> bytes:
    """Return the bytes of the only model.

    Raises:
        TaskError: the options name no file.
        ModelError: the file does not exist, or is a bundle with several models.
    """
    if options.model_asset_path is not None:
        return resolve_model(options.model_asset_path, f"{_BUFFER} takes the bytes of a file.")
    content = _buffer(options)
    bundle = open_content(_BUFFER, memoryview(content))
    return content if bundle is None else bytes(bundle.model().view())


def members_of(
    options: BaseOptions, names: Sequence[str], optional: Sequence[str] = ()
) -> dict[str, bytes]:
    """Return the bytes of the members of a bundle by name, in the order of the arguments.

    The member of a bundle in the bundle is called `inner.task:name`. Optional members that are
    missing are left out.

    Raises:
        TaskError: the options name no file.
        ModelError: the file does not exist, is not a bundle, or lacks one of `names`.
    """
    path = options.model_asset_path
    wanted = " and ".join(f"'{each}'" for each in names)
    advice = f"Give a bundle of MediaPipe (.task) with {wanted}."
    bundle: Container | None
    if path is None:
        name, bundle = _BUFFER, open_content(_BUFFER, memoryview(_buffer(options)))
    else:
        name = os.fspath(path)
        try:
            bundle = open_container(name)
        except OSError as error:
            raise ModelError(f"'{name}' cannot be read: {error.strerror}. {advice}") from error
    if bundle is None:
        raise ModelError(f"'{name}' is not a bundle of models. {advice}")
    members = {each.name: each for each in bundle.members}
    if missing := [each for each in names if each not in members]:
        raise ModelError(f"'{name}' has no '{missing[0]}', but {[*members]}. {advice}")
    found = [each for each in (*names, *optional) if each in members]
    return {each: bytes(members[each].view()) for each in found}


def _buffer(options: BaseOptions) -> bytes:
    if options.model_asset_buffer is None:
        raise TaskError(
            "The base options name no model. Give model_asset_path or model_asset_buffer."
        )
    return bytes(options.model_asset_buffer)
