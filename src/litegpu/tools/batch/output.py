"""The output of `litegpu batch`: its rows, the parts written so far, and the failed samples."""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Iterator
from typing import Any

from litegpu.errors import ModelError, OptionsError
from litegpu.tools import engines
from litegpu.tools.batch.columns import ERROR, NAME, OutputColumns
from litegpu.tools.batch.folder import FileSource
from litegpu.tools.batch.table import TableSource
from litegpu.tools.batch.writer import PartedTable, rows_of_part
from litegpu.tools.console import note
from litegpu.tools.delegation import DELEGATE_FLAGS
from litegpu.tools.models import FoundModel
from litegpu.version import __version__

_OPTIONS = tuple(flag.name for flag in DELEGATE_FLAGS)
_SHOWN = 10
"""Maximum number of failed samples that are named on stderr."""


class OutputTable:
    """The output table: its columns, and the parts written so far."""

    def __init__(
        self,
        args: argparse.Namespace,
        model: FoundModel,
        plan: engines.BatchPlan,
        source: FileSource | TableSource,
        names: list[str],
    ) -> None:
        """Start the table, or continue it; `names` are the names of the outputs.

        Raises:
            FileError: the table cannot be written, or existing parts belong to other settings.
            ModelError: a table cannot have an output's type.
        """
        self._args, self._source = args, source
        self._copied_columns = _KeepColumns(source, args.keep)
        self._columns = OutputColumns(plan, names, self._copied_columns.names, args.dequantize)
        self._rows = rows_of_part(self._columns.row_bytes, plan.batch)
        about = self._about(model, plan)
        self.schema = self._schema(about)
        self._parts = PartedTable(args.output, about, args.resume)
        self.first = min(self._parts.done * self._rows, source.count)
        self.failed, self.failures = 0, list[tuple[str, str]]()
        if self.first:
            note(f"{self.first} of {source.count} samples are done; continuing with the next one.")

    def _schema(self, about: dict[str, Any]) -> Any:
        import pyarrow as pa

        fields = [
            pa.field(NAME, pa.string()),
            *self._copied_columns.fields(),
            *self._columns.fields(),
        ]
        described = {f"litegpu.{name}": str(value) for name, value in about.items()}
        return pa.schema([*fields, pa.field(ERROR, pa.string())], metadata=described)

    def _about(self, model: FoundModel, plan: engines.BatchPlan) -> dict[str, Any]:
        """Return the settings that determine the rows; a resumed run must have equal settings."""
        flags = (*("keep", "dequantize", "on_error", "input_mean", "input_std", "cpu"), *_OPTIONS)
        return {
            "version": __version__,
            "model": hashlib.sha256(model.content).hexdigest(),
            "input": self._source.fingerprint(),
            "batch": plan.batch,
            "rows_of_part": self._rows,
            "flags": {name: getattr(self._args, name) for name in flags},
        }

    def write(
        self, results: Iterator[engines.Result[engines.Arrays]], meter: engines.Meter
    ) -> None:
        """Write a part whenever there are enough results; `meter` measures the results."""
        waiting: list[engines.Result[engines.Arrays]] = []
        for result in results:
            waiting.append(result)
            if result.error:
                self._fail(result)
            if len(waiting) == self._rows:
                self._write_part(waiting)
                waiting = []
        with meter.writing():
            if waiting:
                self._write_part(waiting)

    def _fail(self, result: engines.Result[engines.Arrays]) -> None:
        self.failed += 1
        self.failures.append((result.name, result.error))
        if self._args.on_error == "fail":
            raise ModelError(f"The sample '{result.name}' failed: {result.error}")
        if self.failed <= _SHOWN:
            note(f"{result.name}: {result.error}")
        elif self.failed == _SHOWN + 1:
            note("More samples failed; the output's column 'error' has all reasons.")

    def _write_part(self, results: list[engines.Result[engines.Arrays]]) -> None:
        import pyarrow as pa

        errors = [each.error or None for each in results]
        part = pa.table(
            [
                pa.array([each.name for each in results], pa.string()),
                *self._copied_columns.columns(self._parts.done * self._rows, len(results)),
                *self._columns.arrays([each.value for each in results]),
                pa.array(errors, pa.string()),
            ],
            schema=self.schema,
        )
        if self._args.on_error == "skip":
            part = part.filter(pa.array([error is None for error in errors]))
        self._parts.add(part)

    def finish(self) -> None:
        """Join the parts, and publish the complete table."""
        self._parts.finish(self.schema)

    def leave(self) -> None:
        """Stop early, and report how many samples are already done."""
        if not self._parts.leave():
            return
        done = min(self._parts.done * self._rows, self._source.count)
        note(
            f"{done} of {self._source.count} samples are saved in {self._parts.folder}; "
            "--resume continues with the next one."
        )


class _KeepColumns:
    """Columns that are copied from a table of samples to the output."""

    def __init__(self, source: FileSource | TableSource, requested: str | None) -> None:
        self.names = [each for each in (requested or "").split(",") if each]
        self._source = source if isinstance(source, TableSource) else None
        if self._source:
            for clash in {NAME, ERROR}.intersection(self.names):
                raise OptionsError(
                    f"--keep={requested}: the output already has a column '{clash}'. Rename the "
                    "input's column, or do not copy it."
                )
            self._source.require(self.names)

    def fields(self) -> list[Any]:
        """Return the fields of these columns in the schema."""
        if self._source is None or not self.names:
            return []
        schema = self._source.schema
        return [schema.field(name).remove_metadata() for name in self.names]

    def columns(self, first: int, count: int) -> list[Any]:
        """Return the values of these columns in the rows of some results."""
        if self._source is None or not self.names:
            return []
        found = self._source.table(first, count, self.names)
        return [found.column(name) for name in self.names]
