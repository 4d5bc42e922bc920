"""The C interface between the TensorFlow Lite runtime and its delegates."""
