"""The version of litegpu."""

__version__ = "0.2.0"
