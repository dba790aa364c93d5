"""dump_dir: every stage of every graph as readable text, one directory a graph."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Mapping
from pathlib import Path

from neuron_dynamo.errors import DumpWarning
from neuron_dynamo.options import Options
from neuron_dynamo.report import GraphReport


def dump(outcome: GraphReport, options: Options) -> None:
    """Write `outcome` under options.dump_dir/<graph name>-<key>: 1_aot.fx, 2_passes.fx, 3_program_<n>.stablehlo.mlir,
    4_program_<n>.hlo.txt, ops.json, report.json. Files of earlier runs are overwritten, never deleted. Trouble costs a warning."""
    if options.dump_dir is None:
        return
    directory = Path(options.dump_dir).expanduser() / re.sub(r"[^\w-]", "_", f"{outcome.name}-{(outcome.key or 'host')[:12]}")
    texts = {"1_aot.fx": outcome.fx, "2_passes.fx": outcome.passes_fx}
    for number, program in enumerate(outcome.programs):
        texts[f"3_program_{number}.stablehlo.mlir"] = program.stablehlo
        texts[f"4_program_{number}.hlo.txt"] = program.hlo
    texts["ops.json"] = json.dumps([op.to_json() for op in outcome.ops], indent=1)
    summary = {"name": outcome.name, "kind": outcome.kind, "target": outcome.target, "key": outcome.key, "cache": outcome.cache}
    texts["report.json"] = json.dumps({**summary, "native": outcome.native, "host": outcome.host, "timings": outcome.timings}, indent=1)
    _write(directory, {name: text.encode() for name, text in texts.items()}, options)


def keep_failure(options: Options, name: str, files: Mapping[str, bytes]) -> None:
    """Write `files` of a compile that failed under options.dump_dir/failed-<name>. Trouble costs a warning."""
    if options.dump_dir is not None:
        _write(Path(options.dump_dir).expanduser() / f"failed-{name}", files, options)


def _write(directory: Path, files: Mapping[str, bytes], options: Options) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            (directory / name).write_bytes(data)
    except OSError as error:
        warnings.warn(f"ND131: dump_dir {options.dump_dir}: {error}; compiling goes on", DumpWarning, stacklevel=3)
