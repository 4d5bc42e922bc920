"""Kernel templates (Jinja2), and the implementations that choose and launch them."""
