"""Options of the steps after a model."""

from litegpu.tasks.components.processors.classifier_options import ClassifierOptions

__all__ = ["ClassifierOptions"]
