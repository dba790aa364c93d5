"""The main job, for ./tools/demo: train a small Llama through torch.compile(model, backend="neuron") and look at what happened.

The same training runs three times: in eager PyTorch, compiled in a new process with an empty cache (cold), and compiled in
another new process that finds the cache of the first (warm). Everything that it writes goes to a new folder below dumps/.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TOLERANCE = 1e-4
"""Relative difference from eager's loss that float32 training of this length may show."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20, help="optimizer steps (20)")
    parser.add_argument("--child", metavar="FOLDER", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        json.dump(train(args.steps, args.child), sys.stdout)
        return 0
    return compare(args.steps)


def train(steps: int, folder: Path | None) -> dict[str, Any]:
    """Train for `steps` steps, compiled with cache and dumps below `folder`, or in eager where it is None."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=6,
        num_key_value_heads=2,
        max_position_embeddings=128,
        use_cache=False,
    )
    model = LlamaForCausalLM(config)
    step_model: Any = model
    if folder is not None:
        options = {"cache_dir": str(folder / "cache"), "dump_dir": str(folder / "hlo"), "model_name": "llama"}
        step_model = torch.compile(model, backend="neuron", options=options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    # A language model needs language: the bytes of this repository's licence.
    text = torch.frombuffer(bytearray((ROOT / "LICENSE").read_bytes()), dtype=torch.uint8).long()
    losses, seconds = [], []
    for _ in range(steps):
        begin = time.perf_counter()
        starts = torch.randint(len(text) - 65, (8,))
        tokens = torch.stack([text[start : start + 64] for start in starts.tolist()])
        loss = step_model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        seconds.append(time.perf_counter() - begin)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return {"losses": losses, "seconds": seconds, "parameters": parameters, "graphs": graphs() if folder else []}


def graphs() -> list[dict[str, Any]]:
    import neuron_dynamo

    return [
        {
            "name": graph.name,
            "kind": graph.kind,
            "native": sum(op.placement == "native" for op in graph.ops),
            "host": [f"{op.name} ({op.reason})" for op in graph.ops if op.placement == "host"],
            "cache": graph.cache,
            "timings": dict(graph.timings),
        }
        for graph in neuron_dynamo.reports()
    ]


def in_new_process(steps: int, folder: Path) -> dict[str, Any]:
    """`train` in a process of its own, whose PyTorch caches lie below `folder` too; adds the seconds that the process took."""
    environ = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(folder / "torch")}
    begin = time.perf_counter()
    command = [sys.executable, __file__, "--child", str(folder), "--steps", str(steps)]
    done = subprocess.run(command, env=environ, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.returncode)  # its traceback stands on stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return {**result, "process": time.perf_counter() - begin}


def compare(steps: int) -> int:
    from rich.console import Console

    out = Console(highlight=False, width=None if sys.stdout.isatty() else 120, soft_wrap=True)
    folder = ROOT / "dumps" / time.strftime("demo-%Y%m%d-%H%M%S")
    folder.mkdir(parents=True)
    with out.status("eager PyTorch ..."):
        eager = train(steps, None)
    with out.status("backend='neuron', empty cache ..."):
        cold = in_new_process(steps, folder)
    with out.status("backend='neuron', warm cache ..."):
        warm = in_new_process(steps, folder)
    out.print(f"A Llama of {eager['parameters']:,} parameters, {steps} AdamW steps, float32\n")
    out.print(loss_table(eager, cold, warm), graph_table(cold, warm), time_table(eager, cold, warm))
    for reason in sorted({reason for graph in cold["graphs"] for reason in graph["host"]}):
        out.print(f"on the host: {reason}", markup=False)
    texts = sorted(path.relative_to(folder) for path in (folder / "hlo").rglob("*") if path.is_file())
    out.print(f"StableHLO and HLO: {len(texts)} files in {(folder / 'hlo').relative_to(ROOT)}, such as {', '.join(map(str, texts[:3]))}")
    out.print(f"cache: {(folder / 'cache').relative_to(ROOT)}\n")
    worst = max(difference(run["losses"], eager["losses"]) for run in (cold, warm))
    verdict = "as eager's" if worst <= TOLERANCE else "[bold red]NOT as eager's[/]"
    out.print(f"loss {verdict}: it differs by at most {worst:.1e} of its value (allowed {TOLERANCE:.0e})")
    compiled_again = [graph["name"] for graph in warm["graphs"] if graph["cache"] == "miss"]
    if compiled_again:
        out.print(f"[bold red]the warm process compiled again:[/] {', '.join(compiled_again)}")
    return 0 if worst <= TOLERANCE and warm["graphs"] and not compiled_again else 1


def difference(losses: list[float], expected: list[float]) -> float:
    """Largest relative difference; infinite where a value is not finite."""
    largest = max(abs(ours - theirs) / abs(theirs) for ours, theirs in zip(losses, expected, strict=True))
    return largest if all(abs(ours) < float("inf") for ours in losses) else float("inf")


def loss_table(eager: dict[str, Any], cold: dict[str, Any], warm: dict[str, Any]) -> Any:
    rows = table("step>", "loss, eager>", "loss, neuron cold>", "loss, neuron warm>", "difference>")
    steps = len(eager["losses"])
    for step in sorted({0, *range(4, steps, 5), steps - 1}):
        values = [run["losses"][step] for run in (eager, cold, warm)]
        rows.add_row(str(step + 1), *(f"{value:.6f}" for value in values), f"{max(values) - min(values):.1e}")
    return rows


def graph_table(cold: dict[str, Any], warm: dict[str, Any]) -> Any:
    rows = table("graph", "kind", "native>", "host>", "cold", "warm", "cold s>", "warm s>")
    restored = iter(warm["graphs"])
    for graph in cold["graphs"]:
        again = next(restored, {"cache": "-", "timings": {}})
        seconds = [f"{sum(run['timings'].values()):.2f}" for run in (graph, again)]
        rows.add_row(graph["name"], graph["kind"], str(graph["native"]), str(len(graph["host"])), graph["cache"], again["cache"], *seconds)
    return rows


def time_table(eager: dict[str, Any], cold: dict[str, Any], warm: dict[str, Any]) -> Any:
    rows = table("", "first step s>", "later steps, median ms>", "whole process s>")
    for name, run in (("eager", eager), ("neuron, cold", cold), ("neuron, warm", warm)):
        later = f"{1000 * statistics.median(run['seconds'][1:]):.1f}" if len(run["seconds"]) > 1 else "-"
        rows.add_row(name, f"{run['seconds'][0]:.2f}", later, f"{run['process']:.1f}" if "process" in run else "-")
    return rows


def table(*columns: str) -> Any:
    from rich import box
    from rich.table import Table

    result = Table(box=box.SIMPLE_HEAD)
    for column in columns:
        result.add_column(column.rstrip(">"), justify="right" if column.endswith(">") else "left")
    return result


if __name__ == "__main__":
    sys.exit(main())
