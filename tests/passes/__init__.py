"""Tests of the graph rewrites: each on graphs made by hand, and on models that run."""
