"""One case: eager beside `torch.compile(fullgraph=True, backend="neuron")`, and the verdict.

Tolerances are the database's own for the op, else torch.testing's for the dtype. A value outside of them is right only if the same call
in float64 (complex128) says so: within those tolerances of its result, or its largest error at most twice eager's, as two orders of one
sum may differ. Random cases must equal eager as others do under rng="eager"; under rng="graph" many draws must have eager's distribution
(two-sample Kolmogorov-Smirnov).
"""

from __future__ import annotations

import contextlib
import functools
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
import torch._dynamo
from torch.utils import _pytree as pytree

import neuron_dynamo
from neuron_dynamo import report
from tools._coverage.cases import Case
from tools._coverage.verdicts import FAULTS

DRAWS = 24
WIDER = {
    torch.float32: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float16: torch.float64,
    torch.complex64: torch.complex128,
    torch.complex32: torch.complex128,
}


@dataclass
class Verdict:
    """Outcome of a case: a key of VERDICTS, what to know of it, the ops at fault, and seconds of the first call if compiled alone."""

    letter: str
    detail: str = ""
    ops: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if value}


Results = Callable[[], list[Any]]


def judge(case: Case) -> Verdict:
    """The verdict on one case, compiled alone."""
    try:
        expected = _run(case, case.fresh())
    except Exception as refusal:
        return _refused_alike(case, refusal)
    if case.values and _is_random(case, expected):
        return _judge_random(case)
    return _judge_values(case, expected, {})


def judge_together(cases: Sequence[Case]) -> str:
    """The letter of every one of the cases, found by compiling them as one graph: "N", or "-" where that graph computes nothing.
    "" says nothing of any one of them. Cases that may compute nothing beside others that do must be kept apart by `kind`."""
    together = in_one(cases)
    if together is None:
        return ""
    try:
        with _guards_not_timed():
            letter = _judge_values(together, _run(together, together.fresh()), {}).letter
    except Exception:
        return ""
    return letter if letter in "N-" else ""


def kind(case: Case, run: bool = True) -> str:
    """What a case may be judged together with: "views" of its inputs, other "values"; "" if with nothing: eager refuses it, or it is
    random, which does not matter where the compiled case will not `run`."""
    try:
        if run and case.values and _is_random(case, _run(case, case.fresh())):
            return ""
        if case.prepare is not None:
            return "values"
        args, kwargs = _copies((case.args, case.kwargs))
        given = {_storage(t) for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)}
        results = [t for t in pytree.tree_leaves(case.call(*args, **kwargs)) if isinstance(t, torch.Tensor)]
    except Exception:
        return ""
    return "views" if all(_storage(t) in given for t in results) else "values"


def _storage(t: torch.Tensor) -> int:
    return t.untyped_storage()._cdata if t.layout == torch.strided else id(t)


@contextlib.contextmanager
def _guards_not_timed() -> Iterator[None]:
    """Dynamo without its measurement of the guards' latency, some percent of a sweep's time. Cases whose first call is timed pay for it."""
    real = torch._dynamo.guards.profile_guard_manager
    torch._dynamo.guards.profile_guard_manager = lambda *_: 0.0
    try:
        yield
    finally:
        torch._dynamo.guards.profile_guard_manager = real


def in_one(cases: Sequence[Case]) -> Case | None:
    """All cases as one whose call makes the calls of all; None where they have state of their own or are compared in a way of their own."""
    modules = [c.call for c in cases if isinstance(c.call, torch.nn.Module)]
    if any((c.prepare is not None and len(modules) < len(cases)) or (c.fold is not None and c.differentiate) for c in cases):
        return None
    return Case(
        Each([c.call for c in cases]) if modules else functools.partial(_each, [c.call for c in cases]),
        ([c.args for c in cases], [c.kwargs for c in cases]),
        {},
        cases[0].differentiate,
        lambda results: [c.process(r) for c, r in zip(cases, results, strict=True)],
        cases[0].values,
        cases[0].rtol,
        cases[0].atol,
        prepare=(lambda: Each([c.fresh() for c in cases])) if modules else None,
    )


def _each(calls: Sequence[Any], args: list[Any], kwargs: list[Any]) -> list[Any]:
    return [call(*a, **k) for call, a, k in zip(calls, args, kwargs, strict=True)]


class Each(torch.nn.Module):
    """Modules called one after the other, each with arguments of its own."""

    def __init__(self, modules: Sequence[Any]) -> None:
        super().__init__()
        self.each = torch.nn.ModuleList(modules)

    def forward(self, args: list[Any], kwargs: list[Any]) -> list[Any]:
        """The results of all."""
        return [call(*a, **k) for call, a, k in zip(self.each, args, kwargs, strict=True)]


# Running


def _compiled(call: Callable[..., Any], options: dict[str, str], backend: str = "neuron", whole: bool = True) -> Callable[..., Any]:
    torch._dynamo.reset()
    if isinstance(call, torch.nn.Module) or hasattr(call, "load"):
        function = call
    else:
        # A function of Python's own around builtins, which Dynamo does not take as frames.
        def function(*args: Any, **kwargs: Any) -> Any:
            return call(*args, **kwargs)

    return torch.compile(function, backend=backend, fullgraph=whole, dynamic=False, **({"options": options} if options else {}))


def _copies(values: Any) -> Any:
    made: dict[int, torch.Tensor] = {}

    def copy(t: torch.Tensor) -> torch.Tensor:
        if id(t) not in made:
            made[id(t)] = _copy(t)
        return made[id(t)]

    return pytree.tree_map_only(torch.Tensor, copy, values)


def _copy(t: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        if t.layout != torch.strided or t.is_conj() or t.is_neg() or torch._debug_has_internal_overlap(t) != 0:
            made = t.detach() if t.layout == torch.strided else t.detach().clone()
        else:
            made = torch.empty_strided(t.shape, t.stride(), dtype=t.dtype).copy_(t)
    return made.requires_grad_(t.requires_grad)


def _run(case: Case, call: Callable[..., Any], original: Callable[..., Any] | None = None) -> list[Any]:
    """Results of the case as a flat list: outputs, gradients where asked for, then inputs after the call and the state of a module."""
    original = call if original is None else original
    torch.manual_seed(0)
    if hasattr(original, "load"):
        for _ in range(original.steps):
            original.load()
            call()
        return list(original.state())
    args, kwargs = _copies((case.args, case.kwargs))
    result = case.process(call(*args, **kwargs))
    flat = pytree.tree_leaves(result)
    given = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
    module = original if isinstance(original, torch.nn.Module) else None
    if case.differentiate:
        gradients = _gradients(flat, given, module)
        if case.fold is not None:
            gradients = [g.sum(case.fold) if isinstance(g, torch.Tensor) and g.ndim else g for g in gradients]
        flat = [*(_detached(v) for v in flat), *gradients]
    state = [] if module is None else [b.detach().clone() for b in module.buffers()]
    return [_detached(v) for v in (*flat, *given, *state)]


def _gradients(results: list[Any], given: list[torch.Tensor], module: torch.nn.Module | None) -> list[Any]:
    wanted = [t for t in given if t.requires_grad and t.is_leaf]
    wanted += [] if module is None else [p for p in module.parameters() if p.requires_grad]
    outputs = [r for r in results if isinstance(r, torch.Tensor) and r.requires_grad]
    if not outputs or not wanted:
        return []
    generator = torch.Generator().manual_seed(1)
    cotangents = [_cotangent(o, generator) for o in outputs]
    return list(torch.autograd.grad(outputs, wanted, cotangents, allow_unused=True))


def _cotangent(like: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    if like.layout != torch.strided:
        return torch.ones_like(like)
    wide = torch.complex64 if like.dtype.is_complex else torch.float32
    return torch.randn(like.shape, generator=generator, dtype=wide).to(like.dtype)


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, torch.Tensor) else value


# Comparing


def _different(actual: Any, expected: Any, case: Case) -> str:
    """Why two results differ; '' if they do not."""
    try:
        if not case.values and isinstance(expected, torch.Tensor):
            assert (actual.shape, actual.dtype) == (expected.shape, expected.dtype), (actual, expected)
            return ""
        if not isinstance(expected, (torch.Tensor, int, float, complex, bool)):
            assert type(actual) is type(expected) and (actual == expected or expected is None), (actual, expected)
            return ""
        rtol, atol = case.rtol, case.atol
        if isinstance(expected, torch.Tensor) and (rtol is None or atol is None):
            rtol, atol = torch.testing._comparison.default_tolerances(actual, expected)
        if isinstance(expected, torch.Tensor) and expected.dtype.itemsize == 1 and expected.dtype.is_floating_point:
            actual, expected = actual.float(), expected.float()
        torch.testing.assert_close(actual, expected, rtol=rtol, atol=atol, equal_nan=True)
    except AssertionError as error:
        return " ".join(str(error).split())[:300]
    return ""


def _no_further(actual: torch.Tensor, expected: torch.Tensor, exact: torch.Tensor) -> bool:
    """Whether the largest error of `actual` against the float64 values is of the size of eager's: at most twice that. NaN and infinities
    must be where the exact values have them."""
    wide = exact.dtype
    mine, theirs = (actual.to(wide) - exact).abs(), (expected.to(wide) - exact).abs()
    finite = torch.isfinite(exact.to(actual.dtype)) if actual.dtype.is_floating_point or actual.dtype.is_complex else torch.isfinite(exact)
    odd = ~finite & ~((actual.to(wide) == exact.to(actual.dtype).to(wide)) | (torch.isnan(actual) & torch.isnan(exact)))
    if bool(odd.any()):
        return False
    mine, theirs = mine[finite], theirs[finite]
    return mine.numel() == 0 or bool(mine.max() <= 2 * theirs.nan_to_num(torch.inf).max())


def _wider(case: Case, call: Callable[..., Any]) -> list[Any] | None:
    """The case's results by eager in float64 or complex128, or None where the op has no such form."""

    def widen(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor) and leaf.dtype in WIDER:
            return leaf.detach().to(WIDER[leaf.dtype]).requires_grad_(leaf.requires_grad)
        return WIDER.get(leaf, leaf) if isinstance(leaf, torch.dtype) else leaf

    args, kwargs = pytree.tree_map(widen, (case.args, case.kwargs))
    wide = Case(call, args, kwargs, case.differentiate, case.process, fold=case.fold)
    try:
        if isinstance(call, torch.nn.Module):
            call = call.to(torch.complex128 if any(p.is_complex() for p in call.parameters()) else torch.float64)
        return _run(wide, call)
    except Exception:
        return None


def _judge_values(case: Case, expected: list[Any], options: dict[str, str]) -> Verdict:
    original = case.fresh()
    report.clear()
    start = time.perf_counter()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            actual = _run(case, _compiled(original, options, whole=case.whole), original)
    except Exception as error:
        return _explain(case, expected, error)
    seconds = time.perf_counter() - start
    placed = _placement()
    wrong = compare(case, actual, expected)
    return Verdict("W", wrong, placed.ops) if wrong else Verdict(placed.letter, "", placed.ops, seconds)


def compare(case: Case, actual: list[Any], expected: list[Any]) -> str:
    """The first difference that is our fault; '' if there is none."""
    if len(actual) != len(expected):
        return f"{len(actual)} results for {len(expected)}"
    exact: list[Any] | None = None
    for position, (mine, theirs) in enumerate(zip(actual, expected, strict=True)):
        if why := _different(mine, theirs, case):
            if (
                not isinstance(mine, torch.Tensor)
                or mine.shape != theirs.shape
                or mine.dtype != theirs.dtype
                or mine.layout != torch.strided
            ):
                return f"result {position}: {why}"
            if exact is None:
                exact = _wider(case, case.fresh()) or []
            if len(exact) != len(expected) or not isinstance(exact[position], torch.Tensor) or exact[position].shape != mine.shape:
                return f"result {position}: {why}"
            if _different(mine, exact[position].to(mine.dtype), case) and not _no_further(mine, theirs, exact[position]):
                return f"result {position}: {why} (float64 agrees with eager)"
    return ""


def _placement() -> Verdict:
    graphs = neuron_dynamo.reports()
    hosts = sorted({f"{op.name}: {op.reason}" for g in graphs for op in g.ops if op.placement == "host" and "getitem" not in op.name})
    if not any(op.placement != "runtime" for graph in graphs for op in graph.ops):
        return Verdict("-")
    if not hosts:
        return Verdict("N")
    return Verdict("P" if any(graph.native for graph in graphs) else "H", "", hosts)


# Refusals


def _explain(case: Case, expected: list[Any], error: Exception) -> Verdict:
    """An error of ours, or one that PyTorch's own aot_eager has too; then the case must be right in pieces."""
    text = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            original = case.fresh()
            _run(case, _compiled(original, {}, "aot_eager"), original)
        except Exception:
            pass
        else:
            return Verdict("E", text)
        try:
            report.clear()
            original = case.fresh()
            actual = _run(case, _compiled(original, {}, whole=False), original)
        except Exception as again:
            try:
                original = case.fresh()
                _run(case, _compiled(original, {}, "aot_eager", whole=False), original)
            except Exception:
                return Verdict("B", text)
            return Verdict("E", f"in pieces: {type(again).__name__}: {' '.join(str(again).split())[:300]}")
        wrong = compare(case, actual, expected)
    return Verdict("W", f"in pieces: {wrong}") if wrong else Verdict("B", text)


def _refused_alike(case: Case, refusal: Exception) -> Verdict:
    text = f"eager: {type(refusal).__name__}: {str(refusal)[:200]}"
    try:
        original = case.fresh()
        _run(case, _compiled(original, {}), original)
    except Exception:
        return Verdict("X", text)
    return Verdict("X", f"{text}; compiled it runs")


# Random ops


def _is_random(case: Case, expected: list[Any]) -> bool:
    """Whether the case draws random numbers, and its results depend on them: of four more seeds, one gives another result."""
    real = torch.manual_seed
    for seed in (7, 8, 9, 10):  # one is not enough: an attention that looks at three places drops the same ones in one of eight draws
        torch.manual_seed = lambda _, seed=seed: real(seed)  # type: ignore[assignment]
        try:
            again = _run(case, case.fresh())
        finally:
            torch.manual_seed = real  # type: ignore[assignment]
        drawn = torch.get_rng_state()
        real(seed)
        if torch.equal(drawn, torch.get_rng_state()):
            return False
        if any(isinstance(a, torch.Tensor) and a.layout == torch.strided and _unequal(a, b) for a, b in zip(again, expected, strict=True)):
            return True
    return False


def _unequal(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.dtype == torch.complex32 or (a.dtype.is_floating_point and a.dtype.itemsize == 1):  # which have few functions of their own
        wide = torch.complex64 if a.dtype.is_complex else torch.float32
        a, b = a.to(wide), b.to(wide)
    return a.shape != b.shape or not torch.equal(a.nan_to_num(), b.nan_to_num())


def _judge_random(case: Case) -> Verdict:
    expected = _run(case, case.fresh())
    equal = _judge_values(case, expected, {"rng": "eager"})
    if equal.letter in FAULTS or equal.letter == "B":
        return equal
    original = case.fresh()
    report.clear()
    start = time.perf_counter()
    try:
        compiled = _compiled(original, {})
        first = _run(case, compiled, original)
    except Exception as error:
        return _explain(case, expected, error)
    seconds = time.perf_counter() - start
    placed = _placement()
    for position, (mine, theirs) in enumerate(zip(first, expected, strict=True)):
        if isinstance(theirs, torch.Tensor) and (mine.shape, mine.dtype) != (theirs.shape, theirs.dtype):
            return Verdict("W", f"result {position}: {mine.dtype}{list(mine.shape)} for {theirs.dtype}{list(theirs.shape)}", placed.ops)
    ours, *eager = (_draws(case, *how) for how in ((compiled, original, 0), *((case.fresh(), None, k) for k in (1, 2, 3))))
    for position, (mine, *theirs) in enumerate(zip(ours, *eager, strict=True)):
        if why := distribution_differs(mine, theirs):
            return Verdict("W", f"result {position}: {why}", placed.ops)
    return Verdict(placed.letter, "random", placed.ops, seconds)


def _draws(case: Case, call: Callable[..., Any], original: Callable[..., Any] | None, batch: int) -> list[torch.Tensor]:
    """For each floating or integer result, the values of DRAWS calls, flat; each batch has seeds of its own."""
    real, pooled = torch.manual_seed, []
    for seed in range(DRAWS):
        torch.manual_seed = lambda _, seed=seed: real(1000 * (batch + 1) + seed)  # type: ignore[assignment]
        try:
            results = _run(case, call, original)
        finally:
            torch.manual_seed = real  # type: ignore[assignment]
        pooled.append([_coarse(r) for r in results if isinstance(r, torch.Tensor) and not r.is_complex()])
    return [torch.cat(parts) for parts in zip(*pooled, strict=True)]


def _coarse(values: torch.Tensor) -> torch.Tensor:
    """The values, flat, on a grid of twice the tolerance: the rounding errors of a sum that is zero have no law that must be met."""
    wide = values.detach().to(torch.float64).flatten()
    if not values.dtype.is_floating_point or not wide.numel():
        return wide
    rtol, atol = torch.testing._comparison.get_tolerances(values, values, rtol=None, atol=None)
    step = 2 * (atol + rtol * float(wide.nan_to_num(0, 0, 0).abs().mean()))
    return torch.round(wide / step) * step


def distribution_differs(mine: torch.Tensor, theirs: list[torch.Tensor]) -> str:
    """Two-sample Kolmogorov-Smirnov test of `mine` against each of several batches of eager draws, at about one false alarm in 10^6.
    '' if alike. Values of one call may hang together (a dropped channel), so no distance is held against us that is not well beyond
    those among eager's own batches."""
    n, m = len(mine), len(theirs[0])
    if not n or not m:
        return "" if n == m else f"{n} values for {m}"
    apart = [_distance(a, b) for i, a in enumerate(theirs) for b in theirs[:i]]
    limit = max(2.7 * ((n + m) / (n * m)) ** 0.5, 2 * max(apart, default=0.0))
    distance = min(_distance(mine, batch) for batch in theirs)
    if distance <= limit:
        return ""
    return f"distributions differ: Kolmogorov-Smirnov distance {distance:.3f} over {limit:.3f} ({n} and {m} values)"


def _distance(mine: torch.Tensor, theirs: torch.Tensor) -> float:
    at = torch.cat([mine, theirs]).sort().values
    f = torch.searchsorted(mine.sort().values, at, right=True) / len(mine)
    g = torch.searchsorted(theirs.sort().values, at, right=True) / len(theirs)
    return float((f - g).abs().max())
