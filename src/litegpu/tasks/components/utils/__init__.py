"""Functions on results."""

from litegpu.tasks.components.utils.cosine_similarity import cosine_similarity

__all__ = ["cosine_similarity"]
