"""Functions that set the inputs of interpreters and read their results, by kind of model."""
