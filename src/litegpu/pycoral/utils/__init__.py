"""Interpreters with a delegate, and files of labels."""
