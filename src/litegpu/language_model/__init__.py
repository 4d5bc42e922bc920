"""Language models: prompts and chats on the GPU, with KV caches in device memory."""

from __future__ import annotations

from litegpu.language_model.generation import Completion, TextStream, TokenLogprobs
from litegpu.language_model.model import LanguageModel
from litegpu.language_model.sampling import Sampling
from litegpu.language_model.session import Session

__all__ = ["Completion", "LanguageModel", "Sampling", "Session", "TextStream", "TokenLogprobs"]
