"""The version of litegpu."""

__version__ = "0.1.0"
