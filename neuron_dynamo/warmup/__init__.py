"""Fill the compile cache before the job that needs it: `neuron_dynamo.warmup`.

`plan` runs jobs (a Script, a Model from a factory) without compiling and says which artifacts they want and which of them are missing;
`compile_plan` compiles these. `warm` is both.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from neuron_dynamo.warmup.jobs import Job, Model, Ranks, Script

if TYPE_CHECKING:
    from neuron_dynamo.warmup.planning import Item as Item
    from neuron_dynamo.warmup.planning import Plan as Plan
    from neuron_dynamo.warmup.summary import Outcome as Outcome
    from neuron_dynamo.warmup.summary import Run as Run
    from neuron_dynamo.warmup.summary import Summary as Summary

__all__ = ["Limits", "Model", "Progress", "Ranks", "Script", "compile_plan", "plan", "warm"]


@dataclass(frozen=True)
class Limits:
    """What a warm-up may use: `jobs` compiles at once, `memory` bytes for all of them together, `timeout` seconds for each.

    None: the processors of this process, four fifths of the free memory, no limit. With `scheduler` (tcp://host:port) a Dask cluster
    compiles, and its workers' resources take the place of `jobs` and `memory`.
    """

    jobs: int | None = None
    memory: int | None = None
    timeout: float | None = None
    scheduler: str | None = None

    @property
    def workers(self) -> int:
        from neuron_dynamo.warmup.local import default_jobs

        return self.jobs or default_jobs()


class Progress:
    """What a warm-up tells while it is at work. This one keeps quiet."""

    def collecting(self, label: str) -> None:
        """A job's process is about to start."""

    def planned(self, plan: Plan, limits: Limits) -> None:
        """All graphs are known; the compiles are about to start."""

    def finished(self, outcome: Outcome) -> None:
        """An artifact is there, or failed for good."""


def plan(jobs: Sequence[Job], spool: Path, progress: Progress | None = None) -> tuple[Plan, list[Run]]:
    """Run `jobs` without compiling, and say what they want of the cache. `spool` is an empty folder that the programs need until compiled.

    Raises WarmupError.
    """
    from neuron_dynamo.warmup.collect import collect
    from neuron_dynamo.warmup.planning import make_plan

    graphs, runs = collect(jobs, spool, (progress or Progress()).collecting)
    return make_plan(graphs), runs


def compile_plan(
    plan: Plan, limits: Limits | None = None, on_done: Callable[[Outcome], None] = lambda outcome: None
) -> tuple[Outcome, ...]:
    """Compile what `plan` misses; returns an outcome for each of its items, in its order. Raises WarmupError for a bad cluster."""
    from neuron_dynamo.warmup.local import compile_locally, default_memory
    from neuron_dynamo.warmup.summary import Outcome

    limits = limits or Limits()
    outcomes = {item.key.digest: Outcome(item, "hit") for item in plan.items if item.hit}
    for outcome in outcomes.values():
        on_done(outcome)
    if plan.misses:
        if limits.scheduler:
            from neuron_dynamo.warmup.fleet import compile_on_cluster

            results = compile_on_cluster(plan.misses, limits.scheduler, limits.timeout)
        else:
            results = compile_locally(plan.misses, limits.workers, limits.memory or default_memory(), limits.timeout)
        with closing(results):  # type: ignore[type-var]
            for result in results:
                outcome = _verified(result)
                outcomes[outcome.item.key.digest] = outcome
                on_done(outcome)
    return tuple(outcomes[item.key.digest] for item in plan.items)


def _verified(outcome: Outcome) -> Outcome:
    """A worker may have compiled well, and the cache not have taken it: then the graph is not warm."""
    from neuron_dynamo.cache import Cache

    if outcome.status == "failed" or Cache(outcome.item.options).level(outcome.item.key) != "miss":
        return outcome
    where = outcome.item.options.cache_path
    return replace(outcome, status="failed", message=f"it was compiled, but the cache directory {where} does not have it")


def warm(jobs: Sequence[Job], limits: Limits | None = None, progress: Progress | None = None) -> Summary:
    """Collect the graphs of `jobs` and compile those that the cache lacks. Raises WarmupError; what failed is in the summary."""
    from neuron_dynamo.warmup.summary import Summary

    start = time.perf_counter()
    limits, progress = limits or Limits(), progress or Progress()
    with tempfile.TemporaryDirectory(prefix="neuron-dynamo-warmup-") as folder:
        planned, runs = plan(jobs, Path(folder), progress)
        progress.planned(planned, limits)
        outcomes = compile_plan(planned, limits, progress.finished)
    return Summary(tuple(runs), outcomes, time.perf_counter() - start)
