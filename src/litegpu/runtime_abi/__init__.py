"""The C interface of the TensorFlow Lite runtime that litegpu plugs into."""
