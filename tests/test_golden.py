"""The StableHLO of three models, forward and backward, is what tests/golden_hlo says. After a wanted change: tools/update_golden."""

from __future__ import annotations

import pytest

from tests import golden


@pytest.mark.parametrize("name", golden.MODELS)
def test_lowers_to_the_golden_text(name: str) -> None:
    found = golden.texts(name)
    assert sorted(found) == [f"{name}.backward.mlir", f"{name}.forward.mlir"]
    for file, text in found.items():
        assert text == (golden.DIRECTORY / file).read_text(), f"{file} has changed: run tools/update_golden and review the difference"
