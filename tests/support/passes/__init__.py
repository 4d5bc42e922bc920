"""Tests of the graph rewrites: each on graphs made by hand, and on models that run."""

import pytest

pytest.register_assert_rewrite("passes.graphs", "passes.models")
