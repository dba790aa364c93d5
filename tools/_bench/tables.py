"""Results as Markdown tables. A figure that could not be measured is the word "failed", and its reason follows the tables."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tools._bench.measure import OVERHEAD_ARGUMENTS, TRACE, Case, Plan, Results

FAILED = "failed"


def number(values: dict[str, float], key: str, scale: float, digits: int) -> str:
    return f"{values[key] * scale:,.{digits}f}" if key in values else FAILED


def ratio(values: dict[str, float], subject: str, baseline: str) -> str:
    return f"{values[subject] / values[baseline]:.2f}" if subject in values and baseline in values else FAILED


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = list(head)
    lines = ["| " + " | ".join(head) + " |", "|" + "|".join("---" if column < 1 else "---:" for column in range(len(head))) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def label(case: Case) -> str:
    return f"{case.model}, {case.mode}"


def markdown(results: Results, plan: Plan, machine: dict[str, Any], sizes: dict[str, str]) -> str:
    """The whole report. The last backend of the plan is the subject of the ratios, the others are its baselines."""
    backends, subject = plan.backends, plan.backends[-1]
    baselines = [backend for backend in backends if backend != subject]
    compiled = [backend for backend in backends if backend != "eager"]
    over = [f"{subject} / {baseline}" for baseline in baselines]
    rivals = [baseline for baseline in compiled if baseline != subject]

    parts = [
        "## Measured",
        "; ".join(f"{name} {value}" for name, value in machine.items()),
        "; ".join(f"{model}: {size}" for model, size in sizes.items()) + "; float32",
        f"### First call in a new process, seconds (median of {plan.repeats})",
        table(
            [
                "model",
                *(f"cold {backend}" for backend in compiled),
                *(f"cold {subject} / {rival}" for rival in rivals),
                *(f"warm {backend}" for backend in compiled),
                *(f"warm {subject} / {rival}" for rival in rivals),
                TRACE,
            ],
            (
                [
                    label(case),
                    *(number(case.cold, backend, 1, 2) for backend in compiled),
                    *(ratio(case.cold, subject, rival) for rival in rivals),
                    *(number(case.warm, backend, 1, 2) for backend in compiled),
                    *(ratio(case.warm, subject, rival) for rival in rivals),
                    number(case.warm, TRACE, 1, 2),
                ]
                for case in results.cases
            ),
        ),
        f"### Steady step, milliseconds (median of {plan.rounds * plan.calls} calls, the backends in turns in one process)",
        table(
            ["model", *backends, *over, *(f"{backend} off eager" for backend in compiled)],
            (
                [
                    label(case),
                    *(number(case.steady, backend, 1e3, 2) for backend in backends),
                    *(ratio(case.steady, subject, baseline) for baseline in baselines),
                    *(f"{case.difference[backend]:.0e}" if backend in case.difference else FAILED for backend in compiled),
                ]
                for case in results.cases
            ),
        ),
        "### Call of a graph with one op, microseconds",
        table(
            ["tensor arguments", *backends, *over],
            (
                [
                    str(arguments),
                    *(number(results.overhead[arguments], backend, 1e6, 1) for backend in backends),
                    *(ratio(results.overhead[arguments], subject, baseline) for baseline in baselines),
                ]
                for arguments in OVERHEAD_ARGUMENTS
            ),
        ),
        "### Peak memory of the process, MB (cold: with the compilation; warm: from the cache)",
        table(
            ["model", *(f"cold {backend}" for backend in backends), *(f"warm {backend}" for backend in compiled), "1.5 x eager + 400"],
            (
                [
                    label(case),
                    *(number(case.cold_peak, backend, 1e-6, 0) for backend in backends),
                    *(number(case.warm_peak, backend, 1e-6, 0) for backend in compiled),
                    f"{1.5e-6 * case.cold_peak['eager'] + 400:,.0f}" if "eager" in case.cold_peak else FAILED,
                ]
                for case in results.cases
            ),
        ),
    ]
    if results.failures:
        parts.append("### Failed")
        parts.append(
            "\n".join(
                f"- {failure.backend}, {failure.model} {failure.mode}, {failure.what}: {failure.message}" for failure in results.failures
            )
        )
    return "\n\n".join(parts) + "\n"
