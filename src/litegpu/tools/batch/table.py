"""Reads the samples of `litegpu batch` from the rows of Parquet files.

A table has a column for each model input.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from litegpu.errors import FileError, missing_dependency
from litegpu.tools.batch.arrays import from_array, from_picture, takes_pictures
from litegpu.tools.engines import Arrays, BatchPlan, Tensor

NAMES = ("name", "path", "file_name", "filename", "image_id", "id", "key")
"""Columns that contain the name of a row; the first existing column is used."""
_ROWS = 64
"""Number of rows per read."""


def parquet() -> ModuleType:
    """Return pyarrow.parquet. Raises MissingDependencyError."""
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise missing_dependency("pyarrow", "batch", "Reading and writing Parquet") from error
    module: ModuleType = pyarrow.parquet
    return module


class Row(NamedTuple):
    """A sample: its name, and the value of each input's column."""

    name: str
    values: tuple[Any, ...]


class Span(NamedTuple):
    """Rows of one row group of a file; `number` is the first row's index in the file."""

    file: str
    group: int
    first: int
    rows: int
    number: int


@dataclass(frozen=True)
class RowPreparation:
    """Converts a row to inputs; pixels are normalized as (value - mean) / std."""

    columns: tuple[str, ...]
    root: str
    mean: float
    std: float

    def __call__(self, row: Row, plan: BatchPlan) -> Arrays:
        """Return the inputs of a sample. Raises FileError and ModelError."""
        return [
            self._input(column, value, tensor)
            for column, value, tensor in zip(self.columns, row.values, plan.inputs, strict=True)
        ]

    def _input(self, column: str, value: Any, tensor: Tensor) -> Any:
        if isinstance(value, Mapping) and value.get("bytes") is not None:
            value = value["bytes"]  # the format of pictures in data sets of Hugging Face
        elif isinstance(value, Mapping):
            value = value.get("path")
        if value is None:
            raise FileError(f"The column '{column}' has no value in this row.")
        if isinstance(value, bytes):
            return from_picture(value, tensor, self.mean, self.std)
        if isinstance(value, str):
            path = os.path.join(self.root, value)
            return from_picture(path, tensor, self.mean, self.std)
        return from_array(value, tensor)


class TableSource:
    """Rows of Parquet files, sorted by file name; only a few rows are in memory at once."""

    def __init__(self, root: str, files: Sequence[str], columns: Sequence[str], name: str) -> None:
        """Open the files; the arguments specify the column of each input and that of row names."""
        self._root, self._files = root, list(files)
        self._columns, self._name = tuple(columns), name
        self._cursor: _Cursor | None = None
        self._spans: list[Span] = []
        for file in files:
            start = 0
            for group, rows in enumerate(_group_sizes(file)):
                self._spans.append(Span(file, group, 0, rows, start))
                start += rows

    @property
    def count(self) -> int:
        """The number of samples."""
        return sum(span.rows for span in self._spans)

    @property
    def schema(self) -> Any:
        """The first file's schema."""
        return _opened(self._files[0]).schema_arrow

    def require(self, columns: Sequence[str]) -> None:
        """Raise FileError if one of the files lacks one of these columns."""
        for file in self._files:
            _require(columns, _opened(file).schema_arrow.names, file)

    def fingerprint(self) -> str:
        """Return a text that changes if a file is added, removed or modified."""
        stats = [(file, os.stat(file)) for file in self._files]
        listing = [(file, each.st_size, each.st_mtime_ns) for file, each in stats]
        return hashlib.sha256(repr((listing, self._columns)).encode()).hexdigest()

    def chunks(self, first: int, size: int) -> list[tuple[Span, ...]]:
        """Return the rows from index `first` on, in chunks that may span row groups."""
        pieces: list[tuple[Span, ...]] = []
        piece: list[Span] = []
        room, skip = size, first
        for span in self._spans:
            done = min(skip, span.rows)
            skip -= done
            while done < span.rows:
                count = min(room, span.rows - done)
                piece.append(span._replace(first=done, rows=count, number=span.number + done))
                done, room = done + count, room - count
                if not room:
                    pieces.append(tuple(piece))
                    piece, room = [], size
        return [*pieces, tuple(piece)] if piece else pieces

    def read(self, chunk: Sequence[Span]) -> Iterator[Row]:
        """Yield the rows of a chunk; only one thread may use this method.

        Raises:
            FileError: a file is damaged.
        """
        columns = list(dict.fromkeys((*self._columns, self._name) if self._name else self._columns))
        for span in chunk:
            number = span.number
            for batch in self._batches(span, columns):
                values = {name: rows_of(batch.column(name)) for name in columns}
                for index in range(batch.num_rows):
                    name = f"{os.path.basename(span.file)}:{number}"
                    if self._name:
                        name = _text(values[self._name][index], name)
                    yield Row(name, tuple(values[each][index] for each in self._columns))
                    number += 1

    def table(self, first: int, count: int, columns: Sequence[str]) -> Any:
        """Return columns of some rows unchanged, as a pyarrow.Table."""
        import pyarrow

        (chunk,) = self.chunks(first, count)[:1]
        batches = [batch for span in chunk for batch in self._batches(span, list(columns))]
        return pyarrow.Table.from_batches(batches)

    def preparation(self, mean: float, std: float) -> RowPreparation:
        """Return the function that converts a row to inputs."""
        return RowPreparation(self._columns, self._root, mean, std)

    def check(self, plan: BatchPlan) -> None:
        """Raise FileError if a column's type does not fit its input."""
        import pyarrow

        schema = _opened(self._files[0]).schema_arrow
        for column, tensor in zip(self._columns, plan.inputs, strict=True):
            kind = schema.field(column).type
            encoded = pyarrow.types.is_binary(kind) or pyarrow.types.is_large_binary(kind)
            encoded |= pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind)
            if (encoded or pyarrow.types.is_struct(kind)) and not takes_pictures(
                tensor, plan.batched
            ):
                raise FileError(
                    f"The column '{column}' holds {kind}, which is read as pictures, but the input "
                    f"'{tensor.name}' of shape {list(tensor.shape)} does not take pictures. "
                    "Give a column of numbers or lists of them."
                )

    def _batches(self, span: Span, columns: list[str]) -> Iterator[Any]:
        """Yield the rows of a span; a span after the previous one continues the open reader."""
        cursor = self._cursor
        if cursor is None or not cursor.leads_to(span, columns):
            cursor = self._cursor = _Cursor(span, columns)
        yield from cursor.take(span)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_cursor": None}


class _Cursor:
    """Reads a row group sequentially."""

    def __init__(self, span: Span, columns: list[str]) -> None:
        self._file, self._group, self._columns = span.file, span.group, columns
        self._row = 0
        file = _opened(span.file)
        with _reading(span.file):
            self._batches = file.iter_batches(_ROWS, row_groups=[span.group], columns=columns)
        self._rest: Any = None

    def leads_to(self, span: Span, columns: list[str]) -> bool:
        """Whether the span is after the rows that have been read."""
        position = (self._file, self._group, self._columns)
        return position == (span.file, span.group, columns) and self._row <= span.first

    def take(self, span: Span) -> Iterator[Any]:
        """Yield the rows of a span as record batches."""
        end = span.first + span.rows
        while self._row < end:
            if self._rest is None:
                with _reading(span.file):
                    self._rest = next(self._batches)
            batch, start = self._rest, self._row
            skip = max(span.first - start, 0)
            part = batch.slice(skip, max(min(end - start, batch.num_rows) - skip, 0))
            used = min(end - start, batch.num_rows)
            self._row += used
            self._rest = batch.slice(used) if used < batch.num_rows else None
            if part.num_rows:
                yield part


def find_tables(
    path: str, plan: BatchPlan, columns: Mapping[str, str], name: str | None
) -> TableSource:
    """Return the rows of a Parquet file, or of all Parquet files below a folder.

    Args:
        path: the file or folder.
        plan: the model's inputs, each of which needs a column.
        columns: the column of each input whose column has another name, by the input's name.
        name: the column with the names of rows; None for the first existing column of NAMES.

    Raises:
        FileError: a file is not a Parquet file, or an input has no column.
    """
    root = Path(path)
    files = [path] if root.is_file() else sorted(map(str, root.rglob("*.parquet")))
    schema = _opened(files[0]).schema_arrow
    known = list(schema.names)
    _require([*columns.values(), *([name] if name else [])], known, files[0])
    naming = name or next((each for each in NAMES if each in known), "")
    chosen = [_column_of(each, plan, known, columns, naming, files[0]) for each in plan.inputs]
    folder = str(root.parent if root.is_file() else root)
    source = TableSource(folder, files, chosen, naming)
    source.require([*chosen, *([naming] if naming else [])])
    return source


def _require(columns: Sequence[str], known: Sequence[str], file: str) -> None:
    for each in columns:
        if each not in known:
            raise FileError(f"{file} has no column '{each}'. It has: {', '.join(known)}.")


def _column_of(
    tensor: Tensor,
    plan: BatchPlan,
    known: Sequence[str],
    columns: Mapping[str, str],
    naming: str,
    file: str,
) -> str:
    """Return the column of an input: the specified one, that of the same name, or the only one."""
    plain = tensor.name.removeprefix("serving_default_").split(":")[0]
    column_name = columns.get(tensor.name) or columns.get(plain)
    if column_name:
        return column_name
    for each in (tensor.name, plain):
        if each in known:
            return each
    others = [each for each in known if each != naming] or list(known)
    if len(plan.inputs) == 1 and len(others) == 1:
        return others[0]
    raise FileError(
        f"{file} has no column for the input '{tensor.name}' of shape {list(tensor.shape)}. "
        f"It has: {', '.join(known)}. Name it: --columns='{plain}=COLUMN'."
    )


def rows_of(column: Any) -> Sequence[Any]:
    """Convert an Arrow column to one value per row: an array, number, bytes, text or None."""
    import pyarrow as pa

    kind = column.type
    if isinstance(kind, pa.FixedShapeTensorType) and not column.null_count:
        return list(column.to_numpy_ndarray())
    if isinstance(column, pa.ExtensionArray):
        column, kind = column.storage, column.storage.type
    lists = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    if (lists or pa.types.is_fixed_size_list(kind)) and _is_number(pa, kind.value_type):
        return [None if row is None else _numbers(row) for row in map(_values, column)]
    if lists or pa.types.is_fixed_size_list(kind):
        return [None if row is None else np.array(row) for row in column.to_pylist()]
    return list(column.to_pylist())


def _is_number(pa: Any, kind: Any) -> bool:
    return any(
        test(kind) for test in (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean)
    )


def _values(scalar: Any) -> Any:
    return scalar.values if scalar.is_valid else None


def _numbers(values: Any) -> Any:
    return values.to_numpy(zero_copy_only=False)


def _text(value: Any, default: str) -> str:
    return default if value is None else str(value)


def _opened(file: str) -> Any:
    with _reading(file):
        return parquet().ParquetFile(file, memory_map=True, pre_buffer=False)


def _group_sizes(file: str) -> list[int]:
    metadata = _opened(file).metadata
    return [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]


@contextlib.contextmanager
def _reading(file: str) -> Iterator[None]:
    """Raise FileError for any error while a file is read."""
    try:
        yield
    except FileError:
        raise
    except (OSError, ValueError) as error:  # pyarrow's own errors are subclasses
        why = " ".join(str(error).split()).rstrip(".")
        raise FileError(f"'{file}' cannot be read as Parquet: {why}. Write it again.") from error
