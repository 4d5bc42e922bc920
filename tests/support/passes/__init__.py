"""Tests of the graph passes, on graphs built by hand and on models that run."""

import pytest

pytest.register_assert_rewrite("passes.graphs", "passes.models")
