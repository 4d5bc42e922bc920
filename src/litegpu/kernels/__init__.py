"""Kernel templates (Jinja2), one per family, written in the portable dialect."""
