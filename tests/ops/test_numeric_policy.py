"""The values that each policy stores as half, by size."""

from __future__ import annotations

import pytest

from litegpu.numeric_policy import FP16, FP16_ALL, FP32, NumericPolicy


@pytest.mark.parametrize(
    ("policy", "values", "weights"), [(FP16, 8 << 20, 256 << 10), (NumericPolicy(64), 64, 2)]
)
def test_what_is_large_is_half(policy: NumericPolicy, values: int, weights: int) -> None:
    assert policy.stores_half(values) and not policy.stores_half(values - 1)
    assert policy.keeps_fp32_weights(weights - 1) and not policy.keeps_fp32_weights(weights)


def test_at_fp32_nothing_is_half() -> None:
    assert not FP32.uses_fp16 and not FP32.guards_range
    assert not FP32.stores_half(1 << 40) and FP32.keeps_fp32_weights(1 << 40)
    assert not FP32.may_round(10**15)


def test_where_all_is_half_the_smallest_is_too() -> None:
    assert FP16_ALL.stores_half(0) and not FP16_ALL.keeps_fp32_weights(0)


def test_products_round_where_they_are_large_or_all_is_half() -> None:
    assert FP16.may_round(400_000_000) and not FP16.may_round(400_000_000 - 1)
    assert FP16_ALL.may_round(1)
    assert all(policy.uses_fp16 and policy.guards_range for policy in (FP16, FP16_ALL))
