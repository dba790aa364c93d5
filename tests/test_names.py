"""Who owns the backend names."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from neuron_dynamo import names
from neuron_dynamo.errors import BackendNameWarning


def test_both_names_are_ours() -> None:
    assert names.owners("neuron") == ["neuron-dynamo"]
    assert names.owners("neuron_dynamo") == ["neuron-dynamo"]


def test_a_rival_is_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def owners(name: str) -> Any:
        return ["neuron-dynamo", "torch-neuronx"]

    monkeypatch.setattr(names, "owners", owners)
    names.warn_of_rivals.cache_clear()
    with pytest.warns(BackendNameWarning, match=r"ND101: torch-neuronx also"):
        names.warn_of_rivals()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        names.warn_of_rivals()
    names.warn_of_rivals.cache_clear()


def test_alone_it_is_silent() -> None:
    names.warn_of_rivals.cache_clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        names.warn_of_rivals()
