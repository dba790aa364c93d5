"""`cache explain`: the nearest entries, the parts that differ, and a diff where the texts are kin."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from neuron_dynamo.cache import Artifact, CacheKey
from neuron_dynamo.cache.explain import GRAPH, explain, text_diff, why_missed
from neuron_dynamo.cache.local import LocalStore
from neuron_dynamo.cli.main import main
from neuron_dynamo.errors import InspectError
from tests.cache.samples import SIGNATURE, artifact

ADD = "%0 = input : float32[2]\n%1 = aten::add.Tensor(%0, 1) : float32[2]\n%2 = aten::sin.default(%1) : float32[2]\noutput (%2,)\n"


def artifact_key(program: str, **parts: str) -> CacheKey:
    return CacheKey(tuple({"kind": "artifact", "program": program, "target": "host", "compiler_args": "-O1", **parts}.items()))


def graph_key(graph: str) -> CacheKey:
    return CacheKey((("kind", "program"), ("graph", graph), ("target", "host")))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Artifacts a, b and c (the last with other flags), written in this order; descriptions of graphs g and h."""
    store = LocalStore(tmp_path / "cache")
    for number, key in enumerate((artifact_key("a"), artifact_key("b"), artifact_key("b", compiler_args="-O2"))):
        store.write(key, artifact(key.digest.encode()))
        os.utime(store.entry_path(key) / "manifest.json", (1e9 + number, 1e9 + number))
    for number, (name, text) in enumerate({"g": ADD, "h": "output ()\n"}.items()):
        store.write(graph_key(name), Artifact(b"", SIGNATURE, blobs={GRAPH: text.encode()}))
        os.utime(store.entry_path(graph_key(name)) / "manifest.json", (1e9 + number, 1e9 + number))
    return store.root


def test_a_miss_names_the_parts_that_differ_least(root: Path) -> None:
    (explanation,) = explain(artifact_key("b", compiler_args="-O3"), cache_dir=root, count=2)
    assert (explanation.level, explanation.kind) == ("miss", "artifact")
    assert [[(d.part, d.own, d.stored) for d in n.differences] for n in explanation.neighbours] == [
        [("compiler_args", "-O3", "-O2")],
        [("compiler_args", "-O3", "-O1")],
    ]
    assert explanation.reason.endswith("differs in compiler_args (here '-O3', there '-O2')")
    assert why_missed(artifact_key("b", compiler_args="-O3"), root) == explanation.reason


def test_a_part_that_one_side_lacks(root: Path) -> None:
    (explanation,) = explain(artifact_key("b", cpu="x"), cache_dir=root)
    assert explanation.reason.endswith("differs in cpu (here 'x', there absent)")


def test_an_entry_is_compared_with_older_ones(root: Path) -> None:
    (b,) = explain(artifact_key("b").digest[:12], cache_dir=root)
    assert [n.digest for n in b.neighbours] == [artifact_key("a").digest]
    (first,) = explain(artifact_key("a").digest, cache_dir=root)
    assert (first.level, first.neighbours) == ("disk", ())
    assert first.reason == "there is no other entry of kind 'artifact' to compare with"


def test_the_last_miss_is_the_entry_written_last(root: Path) -> None:
    (last,) = explain(cache_dir=root)
    assert last.digest == artifact_key("b", compiler_args="-O2").digest
    assert [d.part for d in last.neighbours[0].differences] == ["compiler_args"]


def test_graphs_are_compared_with_graphs_and_kindred_ones_get_a_diff(root: Path) -> None:
    (explanation,) = explain(graph_key("h"), cache_dir=root)
    assert explanation.neighbours[0].diff.endswith("are different programs: 0% of their lines are the same")
    changed = text_diff(ADD, ADD.replace("sin", "cos"), "old", "new")
    assert changed.splitlines()[:2] == ["--- old", "+++ new"]
    assert [line for line in changed.splitlines()[3:] if line[0] in "+-"] == [
        "-%2 = aten::sin.default(%1) : float32[2]",
        "+%2 = aten::cos.default(%1) : float32[2]",
    ]


def test_numbers_of_values_alone_make_no_noise() -> None:
    inserted = ADD.replace("%2", "%3").replace("%1", "%2").replace("%2 =", "%1 = aten::neg.default(%0) : float32[2]\n%2 =", 1)
    lines = text_diff(ADD, inserted, "a", "b").splitlines()
    assert [line for line in lines[2:] if line[0] in "+-"] == ["+%1 = aten::neg.default(%0) : float32[2]"]
    assert text_diff("sub %1, %2\n", "sub %2, %1\n", "a", "b").splitlines()[3:] == ["-sub %1, %2", "+sub %2, %1"]
    assert text_diff(ADD, ADD, "a", "b") == ""


@pytest.mark.parametrize("what", ["0000", "no_such_module_at_all:function"])
def test_what_is_not_there_is_an_error(root: Path, what: str) -> None:
    with pytest.raises(InspectError):
        explain(what, cache_dir=root)


def test_an_empty_cache_has_no_last_miss(tmp_path: Path) -> None:
    with pytest.raises(InspectError, match="holds no artifact"):
        explain(cache_dir=tmp_path / "absent")


def test_command(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache", "explain", "--last", "--cache-dir", str(root)]) == 0
    out = capsys.readouterr().out
    for text in (artifact_key("b", compiler_args="-O2").digest, artifact_key("b").digest, "compiler_args", "-O2", "-O1"):
        assert text in out
    assert main(["cache", "explain", artifact_key("b").digest, "--json", "--cache-dir", str(root)]) == 0
    (data,) = json.loads(capsys.readouterr().out)
    assert data["neighbours"][0]["differences"] == [{"part": "program", "own": "b", "stored": "a"}]
    assert data == explain(artifact_key("b").digest, cache_dir=root)[0].to_json() | {"neighbours": data["neighbours"]}
    assert main(["cache", "explain", "--cache-dir", str(root)]) == 2
    assert "one thing is to be explained" in capsys.readouterr().err
