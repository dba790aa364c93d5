"""Type promotion for rules: operands of an elementwise op, brought to one dtype and one shape."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from neuron_dynamo.lowering.builder import Builder, Scalar, Value


def result_type(*operands: Value | Scalar) -> torch.dtype:
    """torch.result_type over any number of operands: dimensioned tensors before 0-d tensors before Python scalars."""
    return torch._prims_common.elementwise_dtypes(
        *[torch.empty(x.shape, dtype=x.dtype, device="meta") if isinstance(x, Value) else x for x in operands],
        type_promotion_kind=torch._prims_common.ELEMENTWISE_TYPE_PROMOTION_KIND.DEFAULT,
    )[1]


def together(
    b: Builder, operands: Sequence[Value | Scalar], dtype: torch.dtype | None = None, shape: Sequence[int] | None = None
) -> list[Value]:
    """Operands as Values of `dtype` (default: their result type) and `shape` (default: the rule's result shape)."""
    dtype = result_type(*operands) if dtype is None else dtype
    shape = b.out.shape if shape is None else shape
    return [b.value(x, dtype, shape) for x in operands]
