"""The decomposition table, made only when AOTAutograd asks it something: a warm start never does."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any


class LazyTable(Mapping[Any, Callable[..., Any]]):
    """passes/decompositions.decomposition_table(), read through on first use, without ops for which the user registered something."""

    @functools.cached_property
    def _table(self) -> dict[Any, Callable[..., Any]]:
        from neuron_dynamo import custom
        from neuron_dynamo.passes.decompositions import decomposition_table

        taken = custom.taken()
        return {op: function for op, function in decomposition_table().items() if op not in taken} if taken else decomposition_table()

    def __getitem__(self, op: Any) -> Callable[..., Any]:
        return self._table[op]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._table)

    def __len__(self) -> int:
        return len(self._table)

    def __bool__(self) -> bool:
        return True
