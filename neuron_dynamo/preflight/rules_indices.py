"""Indices that are known when the program is compiled, and lie beyond the dims that they index."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from neuron_dynamo.lowering.reading import Operation
from neuron_dynamo.preflight.rule import Fault, rule
from neuron_dynamo.target import Target

_NAMES = {
    "stablehlo.scatter": ("NCC_EVRF031", "scatter_dimension_numbers", "scatter_dims_to_operand_dims"),
    "stablehlo.gather": ("NCC_EVRF056", "dimension_numbers", "start_index_map"),
}
"""Code, and the attributes' names for the numbers of dims and, in these, for the dims that the components of an index stand for."""


@rule(*_NAMES)
def counted_indices(operation: Operation, target: Target) -> Iterator[Fault]:
    """Each indexed dim against the numbers that an iota counts to."""
    code, numbers, order = _NAMES[operation.name]
    place = len(operation.operands) // 2
    text, shape = str(operation.attributes[numbers]), operation.operands[place].shape
    vector = int(found[1]) if (found := re.search(r"index_vector_dim = (\d+)", text)) else 0
    listed = re.search(rf"{order} = \[([\d, ]+)\]", text)
    if listed is None or 0 in shape:
        return
    for component, dim in enumerate(map(int, listed[1].split(","))):
        last = _last(operation.makers[place], vector if vector < len(shape) else None, component)
        size = operation.operands[0].shape[dim]
        if last is not None and size is not None and last >= size:
            yield Fault(code, f"indices that count to {last} in dim {dim}, which has {size}", "drop those that are out of range")


def _last(made: Operation | None, axis: int | None, at: int) -> int | None:
    """What a tensor counts to at place `at` of dim `axis`, or anywhere if that is None; None where it does not come from an iota."""
    if made is None:
        return None
    shape, given = made.results[0].shape, made.makers
    if axis is not None and shape[axis] == 1:
        axis = None
    if made.name == "stablehlo.iota":
        dim = made.attributes["iota_dimension"]
        size = shape[dim]
        return at if dim == axis else None if size is None else size - 1
    if made.name == "stablehlo.convert":
        return _last(given[0], axis, at)
    if made.name == "stablehlo.transpose":
        return _last(given[0], None if axis is None else made.attributes["permutation"][axis], at)
    if made.name == "stablehlo.broadcast_in_dim":
        dims = made.attributes["broadcast_dimensions"]
        return _last(given[0], dims.index(axis) if axis in dims else None, at)
    if made.name == "stablehlo.reshape":
        before = made.operands[0].shape
        if axis is None:
            return _last(given[0], None, at)
        kept = axis == len(shape) - 1 and before[-1:] == shape[-1:]
        return _last(given[0], len(before) - 1, at) if kept else None
    if made.name == "stablehlo.concatenate":
        return _last_joined(made, axis, at)
    return _last(given[2], axis, at) if made.name == "stablehlo.select" and _wraps(made) else None


def _last_joined(made: Operation, axis: int | None, at: int) -> int | None:
    if axis is None or made.attributes["dimension"] != axis:
        return max((last for part in made.makers if (last := _last(part, axis, at)) is not None), default=None)
    for part, kind in zip(made.makers, made.operands, strict=True):
        size = kind.shape[axis] or 0
        if at < size:
            return _last(part, axis, at)
        at -= size
    return None


def _wraps(select: Operation) -> bool:
    """Whether a select counts negative indices from the end, and so leaves those of an iota as they are."""
    condition = select.makers[0]
    if condition is None or condition.name != "stablehlo.compare" or " LT" not in f" {condition.attributes['comparison_direction']}":
        return False
    return condition.makers[0] is select.makers[2] and _number(condition.makers[1]) == 0


def _number(made: Operation | None) -> int | None:
    """The one integer that a tensor consists of, where the program tells."""
    while made is not None and made.name in ("stablehlo.broadcast_in_dim", "stablehlo.convert", "stablehlo.reshape"):
        made = made.makers[0]
    value = made.attributes["value"] if made is not None and made.name == "stablehlo.constant" else None
    return int(value.flat[0]) if isinstance(value, np.ndarray) and value.size and (value == value.flat[0]).all() else None


@rule("stablehlo.dynamic_slice", "stablehlo.dynamic_update_slice")
def constant_starts(operation: Operation, target: Target) -> Iterator[Fault]:
    """Of NCC_ESMP002 only the release notes tell: bounds of constant indices are checked against each dim.

    Of a dynamic_slice the compiler sees nothing unless it reads StableHLO: in an HLO proto XLA has made a plain slice of it.
    """
    cut = operation.name == "stablehlo.dynamic_slice"
    sizes = operation.attributes["slice_sizes"] if cut else operation.operands[1].shape
    for dim, (made, size, whole) in enumerate(zip(operation.makers[1 if cut else 2 :], sizes, operation.operands[0].shape, strict=True)):
        start = _number(made)
        if start is not None and size is not None and whole is not None and not 0 <= start <= whole - size:
            what = f"{size} from {start} on in dim {dim}, which has {whole}"
            yield Fault("NCC_ESMP002", what, "use a start within the dim", refused=not cut)
