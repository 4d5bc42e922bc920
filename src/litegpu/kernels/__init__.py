"""Kernel templates (Jinja2), and the implementations that select and launch them."""
