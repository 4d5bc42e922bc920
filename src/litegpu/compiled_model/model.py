"""CompiledModel: LiteRT's methods for running a model on buffers, and a shorter form."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from litegpu.compiled_model import remedies
from litegpu.compiled_model.accelerators import wanted
from litegpu.compiled_model.arrays import Array
from litegpu.compiled_model.call import Call, ordered
from litegpu.compiled_model.chunks import Chunks, rows_of_chunk
from litegpu.compiled_model.contexts import ModelContext, Run
from litegpu.compiled_model.conversion import Conversion
from litegpu.compiled_model.fitting import check_all_open, count
from litegpu.compiled_model.future import ModelFuture
from litegpu.compiled_model.loading import (
    chunk_count,
    content_of,
    contexts_of,
    picture_keywords,
    with_pictures,
)
from litegpu.compiled_model.tensors import ModelTensors
from litegpu.errors import (
    CompiledModelError,
    ForkedProcessError,
    MissingDependencyError,
    ModelError,
)
from litegpu.runtime_abi import interpreter as runtime
from litegpu.tensor_buffer import TensorBuffer, stream_number
from litegpu.zoo import resolve_model
from litegpu.zoo.batch import with_batch


class CompiledModel(ModelTensors):
    """A model that runs on buffers: supported ops on the GPU, all others on the CPU.

    The class has the same methods as `ai_edge_litert.compiled_model.CompiledModel`:

        model = CompiledModel.from_file("model.tflite")
        inputs, outputs = model.create_input_buffers(0), model.create_output_buffers(0)
        inputs[0].write(picture)
        model.run_by_index(0, inputs, outputs)
        scores = outputs[0].read()

    The short form of this example is `scores = model(picture)`. If the GPU runs the whole model,
    its kernels read and write the buffers directly. Several threads may use one model; up to
    `contexts` runs are in flight at a time.
    """

    def __init__(
        self,
        content: bytes,
        hardware_accel: int | None = None,
        environment: Any = None,
        options: Any = None,
        *,
        contexts: int = 1,
        chunks: int | None = None,
        pieces: int | None = None,
        quantize: bool = False,
        **delegate: Any,
    ) -> None:
        """Compile the bytes of a .tflite file; see from_buffer."""
        content, chunks = content_of(content), chunk_count(chunks, pieces)
        requested = wanted(hardware_accel, options)
        picture = picture_keywords(delegate)
        if picture:
            content = with_pictures(content, picture)
        if not isinstance(quantize, bool):
            raise CompiledModelError(f"quantize is {quantize!r}. Use True or False.")
        self._conversion = Conversion(
            quantize, picture.get("input_format"), picture.get("input", 0)
        )
        if delegate and not requested.gpu:
            names = ", ".join(delegate)
            raise CompiledModelError(
                f"{names}: these are options of the GPU, which was not requested."
            )
        if requested.float32:
            delegate.setdefault("precision", "fp32")
        self._environment = environment
        self._pid = os.getpid()
        gpu = delegate if requested.gpu else None
        self._source = (content, gpu, requested.threads)
        super().__init__(contexts_of(self._source, contexts), len(content))
        self._chunks: Chunks | None = None
        if chunks > 1:
            try:
                self._chunks = self._in_chunks(chunks)
            except BaseException:
                self.close()
                raise

    @classmethod
    def from_file(
        cls,
        model_path: str | os.PathLike[str],
        hardware_accel: int | None = None,
        environment: Any = None,
        options: Any = None,
        **delegate: Any,
    ) -> CompiledModel:
        """Compile a .tflite file, or `zoo:NAME`. See from_buffer."""
        try:
            content = resolve_model(
                model_path, "CompiledModel.from_buffer takes the bytes of a .tflite file."
            )
        except ModelError as error:
            raise CompiledModelError(str(error)) from error
        model = cls(content, hardware_accel, environment, options, **delegate)
        model._name = os.fspath(model_path)
        return model

    @classmethod
    def from_buffer(
        cls,
        model_data: bytes,
        hardware_accel: int | None = None,
        environment: Any = None,
        options: Any = None,
        **delegate: Any,
    ) -> CompiledModel:
        """Compile the bytes of a .tflite file.

        `hardware_accel` and `options` are LiteRT's arguments. By default, the GPU runs all
        supported ops, and the CPU runs the others. All other keywords are passed to GpuDelegate,
        such as `backend="cuda"` and `precision="fp16"`. With `input_format`, the model accepts
        images; the keywords of `pictures.with_picture_input` then configure the conversion. With
        `quantize=True`, calls accept and return dequantized (real) values for quantized tensors.
        `environment` is stored but not used. `contexts` is the maximum number of runs in flight.
        Each context has separate activation memory; all contexts share the weights if the GPU runs
        the whole model. With `chunks=N`, a run on host memory splits the batch into N chunks, so
        that copies of one chunk overlap kernels of another.

        Raises CompiledModelError for an invalid model or an unknown accelerator, and the errors of
        GpuDelegate.
        """
        return cls(model_data, hardware_accel, environment, options, **delegate)

    def at_batch(self, rows: int, contexts: int = 1) -> CompiledModel:
        """Return the same model for inputs of `rows` rows, compiled separately.

        All other dimensions of the inputs are the same as in this model. Raises CompiledModelError
        if the model does not support that batch size; see zoo.batch.with_batch.
        """
        self._open()
        rows = count("rows", rows)
        content, gpu, threads = self._source
        try:
            changed = with_batch(content, rows)
        except ModelError as error:
            raise CompiledModelError(str(error)) from error
        other = copy.copy(self)
        other._source, other._chunks = (changed, gpu, threads), None
        ModelTensors.__init__(other, contexts_of(other._source, contexts), len(changed))
        other._name = self._name
        try:
            for number, (now, stated) in enumerate(
                zip(self.signature.inputs, other.signature.inputs, strict=True)
            ):
                if now.shape[1:] != stated.shape[1:]:
                    other.resize_input_tensor(number, (rows, *now.shape[1:]), strict=False)
        except BaseException:
            other.close()
            raise
        return other

    def _in_chunks(self, count: int) -> Chunks:
        """Compile the model of one chunk. Raises CompiledModelError."""
        if len(self._open()) > 1 or not self._main.runs_directly(self.signature):
            raise CompiledModelError(
                "chunks requires a model of one signature that the GPU runs completely. The report "
                "lists the operations of this one that the CPU runs. Compile it without `chunks`, "
                "or a small model with min_nodes_per_partition=0."
            )
        chunk = self.at_batch(rows_of_chunk(self.signature, count), contexts=count)
        try:
            return Chunks(self.signature, self, chunk, count)
        except CompiledModelError:
            chunk.close()
            raise

    def __enter__(self) -> CompiledModel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the model's device memory, but not its buffers. Repeated calls do nothing.

        The method waits for all runs in flight.
        """
        if self._closed:
            return
        self._pool.use_all(self._release)

    def _release(self) -> None:
        self._closed = True
        if self._chunks is not None:
            self._chunks.close()
        for context in self._pool.all:
            context.close()
        for instance in self._instances():
            instance.close()

    def wait_for_best_code(self, timeout: float | None = None) -> bool:
        """Wait as GpuDelegate.wait_for_best_code does, for each instance of the model."""
        self._open()
        delegates = [each.delegate for each in self._instances() if each.delegate is not None]
        return all([delegate.wait_for_best_code(timeout) for delegate in delegates])

    @property
    def environment(self) -> Any:
        """The environment that was passed, or a new environment of LiteRT.

        The value is None if LiteRT is not installed. litegpu does not use the environment.
        """
        if self._environment is None:
            self._environment = runtime.environment()
        return self._environment

    def _resize(self, index: int, number: int, shape: Sequence[int], strict: bool) -> None:
        if self._chunks is not None:
            raise CompiledModelError(
                "The shapes of a model in chunks cannot change. Compile it without `chunks` to "
                "resize its inputs."
            )
        try:
            super()._resize(index, number, shape, strict)
        except CompiledModelError as error:
            given = (self._signature(index), number, tuple(shape), strict)
            remedy = remedies.for_resize(*given, self._why_not_rows)
            raise CompiledModelError(f"{error} {remedy}") from error

    def _why_not_rows(self, rows: int) -> str:
        """Return why `at_batch` cannot compile the model for `rows` rows, or an empty text."""
        try:
            with_batch(self._source[0], rows)
        except MissingDependencyError:
            return ""  # at_batch says what to install
        except ModelError as error:
            return str(error)
        return ""

    # Runs

    def run_by_index(
        self,
        signature_index: int,
        input_buffers: Sequence[TensorBuffer],
        output_buffers: Sequence[TensorBuffer],
        stream: Any = None,
    ) -> None:
        """Run a signature once, from buffers into buffers, in the order of its graph.

        `stream` is a CUDA stream: an integer handle or a stream object of a library such as
        PyTorch. The run begins after all work that is already in the stream. The outputs are
        complete when the method returns.

        Raises CompiledModelError for buffers that do not fit, BindingError for buffers of another
        device, and ExecutionError if the device fails.
        """
        ends = (signature_index, input_buffers, output_buffers, stream)
        self.check_process()
        self._pool.use(lambda context: self._cached_run(context, *ends)())

    def submit_by_index(
        self,
        signature_index: int,
        input_buffers: Sequence[TensorBuffer],
        output_buffers: Sequence[TensorBuffer],
        stream: Any = None,
    ) -> ModelFuture:
        """Start a run as run_by_index does; the future's `result` waits for the end, and is None.

        The caller must not use the buffers, including host memory, until the run ends. If all
        contexts have a run in flight, the method waits for the oldest run.
        """
        ends = (signature_index, input_buffers, output_buffers, stream)
        return self._submitted(lambda context: self._cached_run(context, *ends), lambda: None)

    def _cached_run(
        self,
        context: ModelContext,
        signature_index: int,
        inputs: Sequence[TensorBuffer],
        outputs: Sequence[TensorBuffer],
        stream: Any,
    ) -> Run:
        self._signature(signature_index)
        for name, side in (("input_buffers", inputs), ("output_buffers", outputs)):
            check_all_open(name, side)
        number = None if stream is None else stream_number(stream)
        if self._chunks is not None and self._chunks.wants(inputs):
            return self._chunks.bound(inputs, outputs, number)
        return context.bound(signature_index, inputs, outputs, number)

    def _submitted(
        self, prepare: Callable[[ModelContext], Run], results: Callable[[], Any]
    ) -> ModelFuture:
        self.check_process()
        flight = self._pool.use(lambda context: context.submit(prepare(context)))
        return ModelFuture(flight, results)

    def run_by_name(
        self,
        signature_key: str,
        input_map: Mapping[str, TensorBuffer],
        output_map: Mapping[str, TensorBuffer],
        stream: Any = None,
    ) -> None:
        """Run a signature once, from buffers into buffers, by the names of its tensors.

        As in LiteRT, unknown names in the maps are ignored. See run_by_index.
        """
        signature = self._named(signature_key)
        sides = ((signature.inputs, input_map, "input"), (signature.outputs, output_map, "output"))
        for tensors, given, side in sides:
            if not isinstance(given, Mapping):
                raise CompiledModelError(
                    f"{side}_map is a {type(given).__name__}. Give a dict of TensorBuffers by name."
                )
            names = {tensor.key for tensor in tensors}
            if missing := sorted(names - set(given)):
                raise CompiledModelError(
                    f"The given map is missing some {side} TensorBuffers: {missing}; it has "
                    f"{[*given]}. Give one for each of {sorted(names)}."
                )
        ordered = [[given[t.key] for t in tensors] for tensors, given, _ in sides]
        self.run_by_index(self.get_signature_index(signature_key), ordered[0], ordered[1], stream)

    def __call__(
        self, *inputs: Any, signature: str | None = None, by_name: bool = False, **named: Any
    ) -> Any:
        """Run a signature on arrays; return the output, or a dict of several outputs by name.

        Arrays are passed in order, by name, or as one dict by name. An array of another dtype is
        converted to the tensor's dtype if that is lossless. `signature` is a signature's name; None
        selects the first signature. With `by_name`, the result is a dict even for a single output.
        An input named `signature` or `by_name` must be passed in a dict. GPU arrays, such as
        PyTorch tensors, are read on the device, and the results are then TensorBuffers on the
        device. TensorBuffers are used without a copy. A model that was compiled with `input_format`
        accepts images: paths, the bytes of files, PIL images, or a list with one image for each
        row. Images are cropped and resized as in `litegpu run`.

        Raises CompiledModelError, whose message suggests a remedy, for wrong shapes, dtypes and
        names. Raises FileError for an image that cannot be read.
        """
        call = self._call(inputs, named, signature, by_name)
        self.check_process()
        self._pool.use(lambda context: self._call_run(context, call)())
        return call.results()

    def submit(
        self, *inputs: Any, signature: str | None = None, by_name: bool = False, **named: Any
    ) -> ModelFuture:
        """Start a call; `result` of the returned future waits for the call's result.

        The caller may modify host arrays immediately, but device arrays only after the run ends. If
        all contexts have a run in flight, the method waits for the oldest run. Raises the errors of
        a call for invalid inputs; the future raises the error of a failed run.
        """
        call = self._call(inputs, named, signature, by_name, keep=True)
        return self._submitted(lambda context: self._call_run(context, call), call.results)

    def _call(
        self,
        inputs: Sequence[Any],
        named: Mapping[str, Any],
        key: str | None,
        by_name: bool,
        keep: bool = False,
    ) -> Call:
        signature = self.signature if key is None else self._named(key)
        index = 0 if key is None else self.get_signature_index(key)

        def remedy(number: int, shape: tuple[int, ...]) -> str:
            return remedies.for_call(
                self._signature(index), index, number, shape, self._why_not_rows
            )

        given = ordered(signature.inputs, inputs, named)
        return Call(
            *(index, signature, given, self._conversion, remedy), keep=keep, by_name=by_name
        )

    def _call_run(self, context: ModelContext, call: Call) -> Run:
        self._open()
        return call.run_on(context, self._chunks.on_arrays if self._chunks else None)

    def submit_arrays(self, inputs: Sequence[Array], outputs: list[Array]) -> ModelFuture:
        """Start a run of the first signature on host arrays that fit its tensors."""
        return self._submitted(lambda context: context.on_arrays(0, inputs, outputs), lambda: None)

    def check_process(self) -> None:
        """Raise ForkedProcessError in a child of the process that compiled the model."""
        if self._pid != os.getpid():
            raise ForkedProcessError(
                "This model was compiled before the process was forked. Compile it in the "
                'child; start children with multiprocessing.get_context("spawn").'
            )
