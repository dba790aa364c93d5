"""`neuron-dynamo warmup run|model|plan`: fill the compile cache before the job that needs it. Exits with 1 where a graph is not warm."""

from __future__ import annotations

import argparse
import ast
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neuron_dynamo.cli.option_flags import add_option_flags, given_options, size
from neuron_dynamo.cli.output import console, print_json, table
from neuron_dynamo.errors import WarmupError

if TYPE_CHECKING:
    from neuron_dynamo.warmup import Plan, Summary
    from neuron_dynamo.warmup.jobs import Job, Ranks


def add_parser(commands: Any, common: argparse.ArgumentParser) -> None:
    parser = commands.add_parser("warmup", help="fill the compile cache", description=__doc__)
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    ranks = argparse.ArgumentParser(add_help=False)
    ranks.add_argument(
        "--world-size", type=int, default=0, metavar="N", help="play the ranks of a distributed job of N, one after the other"
    )
    ranks.add_argument("--ranks", metavar="0-7", help="only these of the ranks")
    limits = argparse.ArgumentParser(add_help=False)
    limits.add_argument("--jobs", type=int, metavar="N", help="compiles at once (by default, one a processor)")
    limits.add_argument("--memory", type=size, metavar="8GB", help="bound for all compiles together (by default, 4/5 of what is free)")
    limits.add_argument("--timeout", type=float, metavar="SECONDS", help="bound for one compile")
    limits.add_argument("--scheduler", metavar="tcp://HOST:PORT", help="compile on this Dask cluster")
    limits.add_argument("--junit", type=Path, metavar="FILE", help="write a JUnit report: one test case a graph")
    model = argparse.ArgumentParser(add_help=False)
    _add_model_arguments(model)

    run = actions.add_parser("run", parents=[common, ranks, limits], help="warm what a script compiles", description=_run.__doc__)
    run.add_argument("-m", dest="module", action="store_true", help="SCRIPT is a module, as for python -m")
    run.add_argument("script", metavar="script.py")
    run.add_argument("args", nargs=argparse.REMAINDER, help="arguments of the script")
    run.set_defaults(run=_run)

    factory = actions.add_parser("model", parents=[common, ranks, limits, model], help="warm a model", description=_model.__doc__)
    factory.add_argument("model", metavar="module:function|FILE.toml", help="a factory of models, or a manifest of several")
    factory.set_defaults(run=_model)

    plan = actions.add_parser("plan", parents=[common, ranks, model], help="list what a warm-up would do", description=_plan.__doc__)
    plan.add_argument("--jobs", type=int, metavar="N", help="compiles at once, for the predicted time")
    plan.add_argument("-m", dest="module", action="store_true", help="WHAT is a module, as for python -m")
    plan.add_argument("what", metavar="script.py|module:function|FILE.toml")
    plan.add_argument("args", nargs=argparse.REMAINDER, help="arguments of the script")
    plan.set_defaults(run=_plan)


def _add_model_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("of a model")
    group.add_argument(
        "--shape", action="append", default=[], metavar="NAME=1x128[:DTYPE]", help="shape of an input; dimensions in capitals vary"
    )
    group.add_argument("--dim", action="append", default=[], metavar="S=128,256", help="values of a dimension")
    group.add_argument("--batch", metavar="1,4,8", help="values of B, or else of the first dimension of every input")
    group.add_argument(
        "--mode", action="append", metavar="MODE", help="inference (by default), training or optimizer; several, or with commas"
    )
    group.add_argument("--dynamic", action="store_true", help="one graph with symbolic sizes for all shapes")
    group.add_argument("--optimizer", metavar="torch.optim:AdamW[:lr=1e-3,...]", help="optimizer whose step is compiled (mode optimizer)")
    add_option_flags(group)


def _run(args: argparse.Namespace) -> int:
    """Run a script to its end with every graph executed by eager PyTorch, then compile all graphs that it met, in parallel."""
    return _warm([_script(args, args.script)], args)


def _model(args: argparse.Namespace) -> int:
    """Compile all graphs of a model that a function makes, without memory for its weights; or of all models of a TOML manifest."""
    return _warm(_models(args, args.model), args)


def _plan(args: argparse.Namespace) -> int:
    """List the graphs of a script, a model or a manifest: which are in the cache, and how long the others will take. Compiles nothing."""
    from neuron_dynamo.warmup import Limits, plan

    _check_positive(args)
    jobs = _models(args, args.what) if not args.module and (":" in args.what or args.what.endswith(".toml")) else [_script(args, args.what)]
    with tempfile.TemporaryDirectory(prefix="neuron-dynamo-warmup-") as folder:
        planned, runs = plan(jobs, Path(folder))
    workers = Limits(args.jobs).workers
    if args.json:
        print_json({**planned.to_json(workers), "runs": [run.to_json() for run in runs]})
    else:
        _print_plan(planned, workers)
    for run in runs:
        if run.failure:
            print(f"{run.label}: {run.failure}", file=sys.stderr)
    return 1 if any(run.failure for run in runs) else 0


def _script(args: argparse.Namespace, script: str) -> Job:
    from neuron_dynamo.warmup.jobs import Script

    if not args.module and not Path(script).is_file():
        raise WarmupError(f"there is no script {script}", remedy="give the path of a Python file, or -m and the name of a module")
    rest = args.args[1:] if args.args[:1] == ["--"] else args.args
    return Script(script, tuple(rest), args.module, _ranks(args))


def _models(args: argparse.Namespace, what: str) -> list[Job]:
    from neuron_dynamo.warmup.jobs import Model, parse_dim, parse_modes, parse_numbers, parse_shape
    from neuron_dynamo.warmup.manifest import read_manifest

    if what.endswith(".toml"):
        return read_manifest(Path(what))
    options = given_options(args)
    shapes, dims = tuple(map(parse_shape, args.shape)), tuple(map(parse_dim, args.dim))
    modes = parse_modes([mode for given in args.mode or [] for mode in given.split(",")])
    optimizer, given = _optimizer(args.optimizer)
    batch = parse_numbers(args.batch) if args.batch else ()
    return [Model(what, shapes, dims, batch, modes, args.dynamic, optimizer, given, options, _ranks(args))]


def _optimizer(text: str | None) -> tuple[str, dict[str, Any]]:
    """`module:Class` and the arguments of `module:Class:lr=1e-3,betas=(0.9, 0.95)`."""
    if not text:
        return "", {}
    parts = text.split(":", 2)
    try:
        call = ast.parse(f"f({parts[2] if len(parts) > 2 else ''})", mode="eval").body
        if not isinstance(call, ast.Call) or call.args or not all(keyword.arg for keyword in call.keywords):
            raise ValueError(text)
        given = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
    except (SyntaxError, ValueError) as error:
        raise WarmupError(f"{text!r} is not an optimizer", remedy="give MODULE:CLASS:lr=1e-3,weight_decay=0.1") from error
    return ":".join(parts[:2]), given


def _ranks(args: argparse.Namespace) -> Ranks:
    from neuron_dynamo.warmup.jobs import parse_ranks

    return parse_ranks(args.world_size, args.ranks)


def _check_positive(args: argparse.Namespace) -> None:
    if args.jobs is not None and args.jobs < 1:
        raise WarmupError(f"{args.jobs} compiles at once is none", remedy="give --jobs a number from 1")
    if getattr(args, "memory", None) == 0:
        raise WarmupError("no memory is too little for any compile", remedy="give --memory a size such as 8GB")


def _warm(jobs: list[Job], args: argparse.Namespace) -> int:
    from neuron_dynamo.cli.progress import progress_on
    from neuron_dynamo.warmup import Limits, warm

    _check_positive(args)
    limits = Limits(args.jobs, args.memory, args.timeout, args.scheduler)
    with progress_on(sys.stderr) as progress:
        summary = warm(jobs, limits, progress)
    if args.junit:
        try:
            args.junit.write_text(summary.junit())
        except OSError as error:
            raise WarmupError(f"the report {args.junit} cannot be written: {error}", remedy="give --junit a path that can be") from error
    if args.json:
        print_json(summary.to_json())
    else:
        _print_summary(summary)
    return 0 if summary.ok else 1


def _print_plan(plan: Plan, workers: int) -> None:
    from rich.text import Text

    rows = table("graph", "kind", "cache", "wanted by>", "bytes>", "predicted s>", "key")
    for item in plan.items:
        seconds = "" if item.hit else "unknown" if item.seconds is None else f"{item.seconds:.1f}"
        rows.add_row(Text(item.name), item.kind, item.level, str(len(item.graphs)), f"{item.size:,}", seconds, item.key.digest[:16])
    out = console()
    out.print(rows)
    out.print(plan_line(plan, workers), markup=False)


def plan_line(plan: Plan, workers: int) -> str:
    """One sentence: how much there is to do, and how long that will take."""
    seconds = plan.seconds(workers)
    time = "in an unknown time" if seconds is None else f"in about {seconds:.0f} s"
    todo = f"; {len(plan.misses)} to compile, {workers} at once, {time}" if plan.misses else ""
    return f"{len(plan.items)} programs, {len(plan.items) - len(plan.misses)} in the cache{todo}"


def _print_summary(summary: Summary) -> None:
    from rich.text import Text

    styles = {"hit": "green", "compiled": "green", "failed": "bold red"}
    rows = table("graph", "kind", "wanted by>", "result", "attempts>", "seconds>", "key")
    for outcome in summary.outcomes:
        item = outcome.item
        result = Text(outcome.status, styles[outcome.status])
        seconds = f"{outcome.seconds:.1f}" if outcome.attempts else ""
        rows.add_row(Text(item.name), item.kind, str(len(item.graphs)), result, str(outcome.attempts), seconds, item.key.digest[:16])
    out = console()
    out.print(rows)
    for outcome in summary.outcomes:
        if outcome.status == "failed":
            out.print(f"{outcome.item.name} failed: {outcome.message}", markup=False)
    for run in summary.runs:
        if run.failure:
            out.print(f"{run.label} failed: {run.failure}", markup=False)
    if not summary.outcomes and not any(run.failure for run in summary.runs):
        out.print("nothing was compiled through backend='neuron', so there is nothing to warm", markup=False)
    counts = ", ".join(f"{summary.count(status)} {status}" for status in ("hit", "compiled", "failed"))
    out.print(f"{counts}, in {summary.seconds:.1f} s", markup=False)
