"""LanguageModel: loads a language model's file, and answers prompts and chats."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from typing import Any

from litegpu.compiled_model import CompiledModel, HardwareAccelerator
from litegpu.delegation.report import DelegationReport
from litegpu.language_model.chat import Message
from litegpu.language_model.executor import Embedder, Executor
from litegpu.language_model.file import read_language_file
from litegpu.language_model.generation import Completion, TextStream
from litegpu.language_model.prompts import Prompt, Prompts, padding_token
from litegpu.language_model.session import Session
from litegpu.language_model.tokenizer import read_tokenizer
from litegpu.wording import printable

_CPU = "cpu"


class LanguageModel:
    """A language model that generates text on the GPU.

    The class loads .litertlm files of LiteRT-LM, and .tflite files of litert-torch with the
    signatures `prefill_N` and `decode`:

        model = LanguageModel("gemma.litertlm")
        print(model.generate("The sky is"))
        for part in model.stream([{"role": "user", "content": "Why?"}]):
            print(part, end="")

    Several threads may use one model; the model executes one run at a time.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        backend: str | None = None,
        precision: str | None = None,
        tokenizer: str | os.PathLike[str] | None = None,
        **delegate: Any,
    ) -> None:
        """Compile a file, or `zoo:tiny_lm`, which has random weights.

        Args:
            path: A .litertlm file, a .task file, or a .tflite file with a `tokenizer`.
            backend: As for GpuDelegate, or "cpu" for the runtime's kernels.
            precision: As for GpuDelegate.
            tokenizer: A tokenizer.json or a SentencePiece model that replaces the file's tokenizer.
            delegate: Further options of GpuDelegate.

        Raises:
            ModelError: The file is missing, damaged, or no language model.
            MissingDependencyError: The tokenizer's library is not installed.
            LitegpuError: As GpuDelegate and CompiledModel.
        """
        self._name = os.fspath(path)
        file = read_language_file(path, tokenizer)
        reader = None if file.tokenizer is None else read_tokenizer(file.tokenizer)
        options: dict[str, Any] = {"precision": precision} if precision is not None else {}
        options |= delegate
        if backend == _CPU:
            options["hardware_accel"] = HardwareAccelerator.CPU
        elif backend is not None:
            options["backend"] = backend
        opened: list[CompiledModel] = []

        def compiled(content: bytes) -> CompiledModel:
            opened.append(CompiledModel(content, **options))
            return opened[-1]

        try:
            model = compiled(file.model)
            embedders = {
                role: Embedder(compiled(content))
                for role, content in (("embeddings", file.embedder), ("per_layer", file.per_layer))
                if content is not None
            }
            padding = padding_token(reader, file.metadata)
            self._executor = Executor(model, embedders, file.metadata, padding)
        except BaseException:
            for each in opened:
                each.close()
            raise
        self._prompts = Prompts(reader, file.metadata, self._executor.vocabulary)

    def __repr__(self) -> str:
        return (
            f"<LanguageModel {printable(self._name)}: {self._executor.vocabulary} tokens, context "
            f"of {self._executor.context}; {self._executor.model!r}>"
        )

    def __enter__(self) -> LanguageModel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the model's device memory. Repeated calls do nothing."""
        self._executor.close()

    @property
    def context(self) -> int:
        """The maximum number of tokens in prompt and answer together."""
        return self._executor.context

    @property
    def vocabulary(self) -> int:
        """The number of tokens in the model's vocabulary."""
        return self._executor.vocabulary

    @property
    def report(self) -> DelegationReport | None:
        """Which nodes run on the GPU, and why others do not; None if the backend is "cpu"."""
        return self._executor.model.report

    @property
    def place(self) -> str:
        """Where the model runs: the device, the precision, and the number of delegated nodes."""
        return self._executor.model.place

    def tokenize(self, prompt: Prompt) -> list[int]:
        """Return the tokens of a prompt, with the start token. Raises LanguageModelError."""
        return self._prompts.tokens_of(prompt, continues=False)

    def detokenize(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens, without special tokens."""
        return self._prompts.tokenizer.decode(tokens)

    def chat_text(self, messages: Sequence[Message]) -> str:
        """Return the prompt for messages, by the chat template of the file."""
        return self._prompts.chat_text(messages)

    def session(self) -> Session:
        """Start an empty session with separate KV caches. Raises DeviceMemoryError."""
        return Session(self._executor, self._prompts)

    def generate(self, prompt: Prompt, **options: Any) -> Completion:
        """Return the answer to a prompt; `str(answer)` is its text.

        Args:
            prompt: Text, which the model continues, messages of a chat, or tokens.
            options: The options of `stream`.

        Raises:
            CacheFullError: The prompt is longer than the context.
            LanguageModelError: An argument is invalid.
        """
        return self.stream(prompt, **options).completion()

    def stream(self, prompt: Prompt, **options: Any) -> TextStream:
        """Return the answer to a prompt in parts, as an iterator of text.

        Args:
            prompt: Text, which the model continues, messages of a chat, or tokens.
            options: `max_tokens` is the maximum length of the answer (None: the remaining context).
                With `temperature` 0, the model always selects the most probable token. `top_k`,
                `top_p` and `seed` configure the sampling. `stop` is a text or several texts that
                end the answer. `logprobs` is the number of most probable tokens to store for each
                token of the answer. By default, the model uses the sampling of the file, or
                selects the most probable token, and stores no log probabilities.

        Raises as `generate` does.
        """
        session = self.session()
        try:
            session.append(prompt)
            stream = session.stream(**options)
        except BaseException:
            session.close()
            raise
        stream.call_at_end(session.close)
        return stream

    async def astream(self, prompt: Prompt, **options: Any) -> AsyncIterator[str]:
        """Yield the answer to a prompt in parts, as `stream` does; the model runs in a thread."""
        stream = await asyncio.to_thread(self.stream, prompt, **options)
        try:
            while (part := await asyncio.to_thread(next, stream, None)) is not None:
                yield part
        finally:
            await asyncio.to_thread(stream.close)
