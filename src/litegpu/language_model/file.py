"""Reads the parts of a language model's file."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath

from litegpu import zoo
from litegpu.errors import ModelError
from litegpu.files import (
    MODEL,
    MODEL_IDENTIFIER,
    WEIGHTS,
    Container,
    Member,
    located,
    map_file,
    open_container,
    open_content,
)
from litegpu.language_model.metadata import Metadata, read_metadata
from litegpu.runtime_abi.outside_weights import tables_only
from litegpu.wording import printable

_METADATA, _EXECUTOR = "LLM metadata", "executor metadata"
_TOKENIZERS = ("Hugging Face tokenizer", "SentencePiece tokenizer")
_TASK_TOKENIZER, _TASK_METADATA = "tokenizer_model", "metadata"
"""The lower-case names of the tokenizer and the metadata in a .task file."""
_GROUP = "tflite_weights"
"""The name with which a model of a .litertlm file refers to its section of weights."""
_EMBEDDER, _PER_LAYER = "embedder.tflite", "per_layer_embedder.tflite"


@dataclass(frozen=True)
class LanguageFile:
    """The parts of a language model's file; missing parts are None."""

    model: bytes
    embedder: bytes | None = None
    per_layer: bytes | None = None
    """The model that computes each token's embeddings for the layers."""
    tokenizer: bytes | None = None
    metadata: Metadata = field(default_factory=Metadata)


def read_language_file(
    path: str | os.PathLike[str], tokenizer: str | os.PathLike[str] | None
) -> LanguageFile:
    """Read a .litertlm, .task or .tflite file, or `zoo:NAME`.

    `tokenizer` is the path of a tokenizer, which replaces the tokenizer of the file, if any.

    Raises:
        ModelError: a file is missing, damaged or has no model.
        OptionsError: an unknown zoo model.
    """
    given = None if tokenizer is None else _content(Path(tokenizer))
    name = os.fspath(path)
    if zoo.is_zoo_name(name):
        container = open_content(name, memoryview(zoo.load_language_model(name)))
    else:
        file, member = located(name)
        try:
            container = open_container(file)
        except OSError as error:
            raise _unreadable(Path(path), error) from error
        if container is not None and member:
            return LanguageFile(_with_weights(container, container.model(member)), tokenizer=given)
    if container is None:
        return LanguageFile(_model_file(path), tokenizer=given)
    return _of_container(container, given)


def is_language_container(container: Container) -> bool:
    """Whether a container belongs to a language model: whether it has a tokenizer or metadata."""
    return any(_is_tokenizer(each) or each.kind == _METADATA for each in container.members)


def _is_tokenizer(member: Member) -> bool:
    return member.kind in _TOKENIZERS or member.name.lower() == _TASK_TOKENIZER


def _of_container(container: Container, given: bytes | None) -> LanguageFile:
    models = [each for each in container.members if each.kind == MODEL]
    embedder = _first(models, lambda each: each.name == _EMBEDDER)
    per_layer = _first(models, lambda each: each.name == _PER_LAYER)
    others = [each for each in models if each.name not in (_EMBEDDER, _PER_LAYER)]
    main = _first(others, lambda each: "prefill_decode" in each.name.lower())
    if main is None:
        main = container.model() if len(others) != 1 else others[0]
    tokenizer = _first(container.members, _is_tokenizer)
    metadata = _content_of(container, _METADATA) or _content_of(container, "", _TASK_METADATA)
    executor = _content_of(container, _EXECUTOR)
    return LanguageFile(
        _with_weights(container, main),
        None if embedder is None else _with_weights(container, embedder),
        None if per_layer is None else _with_weights(container, per_layer),
        given or (None if tokenizer is None else bytes(tokenizer.view())),
        read_metadata(metadata, executor),
    )


def _with_weights(container: Container, model: Member) -> bytes:
    """Return the bytes of a model, without the weights that are outside of its tables."""

    def group(name: str) -> memoryview:
        stem = model.name.removesuffix(".tflite")
        found = _first(
            container.members, lambda each: each.kind == WEIGHTS and _stem(each.name) == stem
        )
        if found is None or name != _GROUP:
            raise ModelError(
                f"The model '{printable(model.name)}' of '{printable(container.path)}' has its "
                f"weights in '{printable(name)}', but the file has no such weights for it. Convert "
                "the model again."
            )
        return found.view()

    content = model.view()
    return tables_only(content, group) or bytes(content)


def _stem(name: str) -> str:
    return name.rpartition(".")[0]


def _model_file(path: str | os.PathLike[str]) -> bytes:
    """Return the bytes of a .tflite file, without the weights that are outside of its tables.

    Weights are in files of the model's folder.
    """

    def group(name: str) -> memoryview:
        parts = PurePath(name).parts
        if not parts or PurePath(name).is_absolute() or ".." in parts:
            raise ModelError(
                f"'{printable(os.fspath(path))}' has weights in '{printable(name)}', which is not "
                "in its folder. Convert the model again."
            )
        try:
            return map_file(Path(path).parent / name)
        except (OSError, ValueError) as error:
            raise ModelError(
                f"'{printable(os.fspath(path))}' has weights in '{printable(name)}', which cannot "
                f"be read ({error}). Put the file into the same folder."
            ) from error

    content = map_file(path)
    found = tables_only(content, group) if content[4:8] == MODEL_IDENTIFIER else None
    return found or zoo.resolve_model(path)


def _content_of(container: Container, kind: str, name: str = "") -> bytes:
    """Return the content of the first section of a kind or a name; empty if there is none."""
    found = _first(
        container.members,
        lambda each: each.kind == kind or (name != "" and each.name.lower() == name),
    )
    return b"" if found is None else bytes(found.view())


def _first(members: Sequence[Member], wanted: Callable[[Member], bool]) -> Member | None:
    return next(filter(wanted, members), None)


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError) -> ModelError:
    return ModelError(f"'{printable(str(path))}' cannot be read: {error.strerror}. Check the path.")
