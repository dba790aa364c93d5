"""Why something was not in the cache: the nearest entries, the parts of the key in which they differ, and a diff of the programs."""

from __future__ import annotations

import difflib
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from neuron_dynamo.cache.key import CacheKey
from neuron_dynamo.cache.listing import Entry, entries, show
from neuron_dynamo.errors import InspectError, NeuronDynamoError

GRAPH = "graph.txt"
"""Blob of a program entry: the description of the graph that its key was made from."""

_TEXTS = {"artifact": "program", "program": "graph"}
"""The part of a key that stands for a text worth a diff, by the kind of entry."""
_CANDIDATES = 8
"""Entries of which the texts are compared, where several differ in equally few parts."""
_WIDTH = 400
_KINDRED = 0.3
"""Programs with a smaller share of lines in common are not worth a diff."""


@dataclass(frozen=True)
class Difference:
    """One part of the key: its value here and in the entry, None where a side lacks it."""

    part: str
    own: str | None
    stored: str | None


@dataclass(frozen=True)
class Neighbour:
    """An entry, the parts in which it differs, and a unified diff from its text (StableHLO, or the graph's) to the one asked about."""

    digest: str
    created: float
    differences: tuple[Difference, ...]
    diff: str = field(default="", repr=False)


@dataclass(frozen=True)
class Explanation:
    """Of one key: whether the cache has it (`level`), and the nearest entries, those that differ least first.

    `graph` names the graph, "" where only a digest is known. For an entry that is stored, the neighbours are older ones: they
    tell why it had to be made.
    """

    digest: str
    kind: str
    graph: str
    level: str
    neighbours: tuple[Neighbour, ...] = ()

    @property
    def reason(self) -> str:
        """One sentence: what the nearest entry differs in."""
        if not self.neighbours:
            return f"there is no other entry of kind {self.kind!r} to compare with"
        nearest = self.neighbours[0]
        return f"the nearest entry, {nearest.digest[:16]}, differs in {_listed(nearest.differences)}"

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "reason": self.reason}


def explain(
    what: str | CacheKey | None = None,
    *,
    cache_dir: str | os.PathLike[str] | None = None,
    options: Mapping[str, Any] | None = None,
    count: int = 1,
) -> list[Explanation]:
    """Compare what `what` names with the `count` nearest entries of the cache.

    `what` is the beginning of an entry's digest; a CacheKey; "module:function" as for `neuron-dynamo inspect`, whose graphs are lowered
    under `options`, one Explanation a program; or None for the entry written last, that is the last miss. Raises InspectError where
    there is no such entry or function.
    """
    if cache_dir is None and options is not None:
        cache_dir = options.get("cache_dir")
    if isinstance(what, CacheKey):
        return [_of_key(what, "", None, cache_dir, count)]
    if what is None:
        found = entries(cache_dir, kind="artifact")
        if not found:
            raise InspectError("the cache holds no artifact", remedy="run a compiled function first, or name another --cache-dir")
        return [_of_entry(found[0], cache_dir, count)]
    if ":" in what:
        return _of_model(what, cache_dir, dict(options or {}), count)
    return [_of_entry(show(what, cache_dir), cache_dir, count)]


def why_missed(key: CacheKey, cache_dir: str | os.PathLike[str] | None = None) -> str:
    """Explanation.reason of an artifact's key, found without reading any program."""
    stored = _same_kind(key, cache_dir)
    own = [entry for entry in stored if entry.digest == key.digest]
    neighbours = _nearest(key, _older(stored, own), 1, None)
    return Explanation(key.digest, key.kind, "", "miss", neighbours).reason


def _of_entry(entry: Entry, cache_dir: Any, count: int) -> Explanation:
    older = _older(_same_kind(entry.key, cache_dir), [entry])
    return Explanation(entry.digest, entry.key.kind, "", "disk", _nearest(entry.key, older, count, _text(entry)))


def _of_key(key: CacheKey, graph: str, text: str | None, cache_dir: Any, count: int) -> Explanation:
    stored = _same_kind(key, cache_dir)
    own = [entry for entry in stored if entry.digest == key.digest]
    if own:
        text = text if text is not None else _text(own[0])
    return Explanation(key.digest, key.kind, graph, "disk" if own else "miss", _nearest(key, _older(stored, own), count, text))


def _of_model(spec: str, cache_dir: Any, options: dict[str, Any], count: int) -> list[Explanation]:
    from neuron_dynamo.cli.factory import load_model
    from neuron_dynamo.inspection import inspect

    if cache_dir is not None:
        options["cache_dir"] = os.fspath(cache_dir)
    model, args, kwargs = load_model(spec)
    report = inspect(model, *args, options=options, **kwargs)
    return [
        _of_key(program.cache_key, graph.name, program.stablehlo, cache_dir, count)
        for graph in report.graphs
        for program in graph.programs
        if program.cache_key is not None
    ]


def _same_kind(key: CacheKey, cache_dir: Any) -> list[Entry]:
    return [entry for entry in entries(cache_dir) if entry.key.kind == key.kind]


def _older(stored: Sequence[Entry], own: Sequence[Entry]) -> list[Entry]:
    """Entries that were there before the one in `own`, all if that is none."""
    if not own:
        return list(stored)
    return [entry for entry in stored if entry.digest != own[0].digest and entry.created <= own[0].created]


def _nearest(key: CacheKey, stored: Sequence[Entry], count: int, text: str | None) -> tuple[Neighbour, ...]:
    ranked = sorted(stored, key=lambda entry: (len(entry.key.differing(key)), -entry.created, entry.digest))
    part = _TEXTS[key.kind]
    chosen = ranked[: max(count, _CANDIDATES)] if text is not None else ranked[:count]
    texts = {entry.digest: _text(entry) for entry in chosen} if text is not None else {}

    def distance(entry: Entry) -> tuple[int, float, float]:
        other = texts.get(entry.digest)
        alike = _likeness(text, other) if text is not None and other is not None else 0.0
        return len(entry.key.differing(key)), -alike, -entry.created

    neighbours = []
    for entry in sorted(chosen, key=distance)[:count]:
        differences = tuple(Difference(*each) for each in key.differing(entry.key))
        other = texts.get(entry.digest)
        wanted = text is not None and other is not None and any(difference.part == part for difference in differences)
        diff = _diff(other or "", text or "", entry.digest[:16], key.digest[:16]) if wanted else ""
        neighbours.append(Neighbour(entry.digest, entry.created, differences, diff))
    return tuple(neighbours)


def _text(entry: Entry) -> str | None:
    """The text behind an entry, or None if it cannot be read any more."""
    try:
        return (entry.path / GRAPH).read_text() if entry.key.kind == "program" else entry.stablehlo
    except (OSError, NeuronDynamoError, ValueError):
        return None


_NAME = re.compile(r"%[\w#]+")


def _masked(text: str) -> list[str]:
    return [_NAME.sub("%", line) for line in text.splitlines()]


def _likeness(text: str, other: str) -> float:
    """Share of lines that two programs have in common, whatever their values are called: 0 to 1."""
    mine, theirs = Counter(_masked(text)), Counter(_masked(other))
    return 2 * (mine & theirs).total() / max(1, mine.total() + theirs.total())


def _diff(old: str, new: str, old_name: str, new_name: str) -> str:
    alike = _likeness(old, new)
    if alike < _KINDRED:
        return f"{old_name} and {new_name} are different programs: {alike:.0%} of their lines are the same"
    return text_diff(old, new, old_name, new_name)


def text_diff(old: str, new: str, old_name: str, new_name: str) -> str:
    """Unified diff of two programs. Lines that differ in the numbers of values alone count as equal, unless no other differ."""
    if old == new:
        return ""
    before, after = [[line[:_WIDTH] for line in text.splitlines()] for text in (old, new)]
    for keys in ((_masked(old), _masked(new)), (old.splitlines(), new.splitlines())):
        groups = list(difflib.SequenceMatcher(None, *keys).get_grouped_opcodes(2))
        if groups:
            break
    lines = [f"--- {old_name}", f"+++ {new_name}"]
    for group in groups:
        (_, a, _, c, _), (_, _, b, _, d) = group[0], group[-1]
        lines.append(f"@@ -{a + 1},{b - a} +{c + 1},{d - c} @@")
        for tag, i1, i2, j1, j2 in group:
            if tag == "equal":
                lines.extend(f" {line}" for line in after[j1:j2])
                continue
            lines.extend(f"-{line}" for line in before[i1:i2])
            lines.extend(f"+{line}" for line in after[j1:j2])
    return "\n".join(lines)


def _listed(differences: Sequence[Difference]) -> str:
    def shown(value: str | None) -> str:
        return "absent" if value is None else repr(value if len(value) <= 40 else f"{value[:24]}...")

    return "; ".join(f"{d.part} (here {shown(d.own)}, there {shown(d.stored)})" for d in differences) or "nothing"
