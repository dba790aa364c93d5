"""A double of neuronx-cc: no compiler, and no proof that the real one would accept anything.

It checks its arguments against the documented table, reads the HLO for real, applies the published refusals (hlo_refusals.py) and writes
a NEFF laid out as documented (neff_writer.py) with the program inside. It runs as a program of its own and imports neither torch nor
neuron_dynamo, so that it starts fast. Environment:

FAKE_NEURONX_CC_VERSION   version that it claims (2.27.5334.0+f702b353)
FAKE_NEURONX_CC_RECORD    file that gets one JSON line a compile: argv, cwd, files of the cwd
FAKE_NEURONX_CC_FAULT     exit70, killed, aborted, hang, garbage, partial, empty, missing, flood, oom, disk, wordless, or ncc:<text>
FAKE_NEURONX_CC_SECONDS   time that a compile takes
FAKE_NEURONX_CC_ALIASES   "1": input names of mutated inputs end in ".must_alias_input"
"""

from __future__ import annotations

import datetime
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

HERE = Path(__file__).resolve().parent
SCHEMA = HERE.parents[1] / "neuron_dynamo" / "lowering" / "hlo" / "schema.py"
DEFAULT_VERSION = "2.27.5334.0+f702b353"
TARGETS = ("inf2", "trn1", "trn1n", "trn2", "trn3")
FAILED = 70

# Documented flags: name -> choices, None for any value, () for none at all.
FLAGS: dict[str, tuple[str, ...] | None] = {
    "--framework": ("XLA",),
    "--target": TARGETS,
    "--model-type": ("generic", "transformer", "unet-inference"),
    "--auto-cast": ("none", "matmult", "all"),
    "--auto-cast-type": ("bf16", "fp16", "tf32", "fp8_e4m3"),
    "--distribution-strategy": ("llm-training",),
    "--lnc": ("1", "2"),
    "--optlevel": ("1", "2", "3"),
    "--enable-mixed-precision-accumulation": (),
    "--disable-mixed-precision-accumulation": (),
    "--enable-saturate-infinity": (),
    "--enable-fast-context-switch": (),
    "--enable-fast-loading-neuron-binaries": (),
    "--logfile": None,
    "--output": None,
    "--verbose": None,
}
SINCE_2_27: dict[str, tuple[str, ...] | None] = {
    "--native-int64": ("default", "enabled", "disabled"),
    "--implicit-integer-downcast": None,
}
ALIASES = {"-O": "--optlevel", "-lnc": "--lnc", "--logical-nc-config": "--lnc"}
DOWNCASTS = {"default", "all", "none", "dot", "scatter", "all_reduce", "reduce_scatter", "pow"}
UNDOCUMENTED = ("--internal-", "--experimental-", "--tensorizer-options", "--pipeline")
"""Beginnings of flags that the vendor's own tools pass without documenting them."""


def main(argv: list[str]) -> int:
    version = os.environ.get("FAKE_NEURONX_CC_VERSION", DEFAULT_VERSION)
    if argv == ["--version"]:
        print(f"NeuronX Compiler version {version}\n\nPython version 3.13.7\nHWM version {version}\nNumPy version 2.4.6", file=sys.stderr)
        return 0
    if not argv or argv[0] != "compile":
        fail("EARG002", f"Illegal arguments: {' '.join(argv) or 'no command'}")
    release = tuple(int(part) for part in version.split(".")[:2])
    given, flags = read_arguments(argv[1:], {**FLAGS, **(SINCE_2_27 if release >= (2, 27) else {})})
    record(argv)
    fault = os.environ.get("FAKE_NEURONX_CC_FAULT", "")
    misbehave(fault)
    time.sleep(float(os.environ.get("FAKE_NEURONX_CC_SECONDS", "0")))
    Path(flags.get("--logfile", "log-neuron-cc.txt")).write_text(f"{stamp()} INFO fake neuronx-cc {version}: {' '.join(argv)}\n")
    module, program = read_program(Path(given))
    refuse(module, flags, release)
    output = Path(flags.get("--output", "file.neff"))
    neff = double("neff_writer").write(module, program, Path(given).suffix, flags, os.environ.get("FAKE_NEURONX_CC_ALIASES") == "1")
    if fault == "garbage":
        neff = b"\x5a" * len(neff)
    elif fault == "partial":
        neff = neff[: len(neff) * 2 // 3]
    elif fault == "empty":
        neff = b""
    if fault != "missing":
        output.write_bytes(neff)
    print(f"....\n{stamp()} Compiler status PASS")
    return 0


def read_arguments(tokens: list[str], table: dict[str, tuple[str, ...] | None]) -> tuple[str, dict[str, str]]:
    """The input file and the flags by full name."""
    files: list[str] = []
    flags: dict[str, str] = {}
    waiting = iter(tokens)
    for token in waiting:
        if token.startswith(UNDOCUMENTED):
            if token == "--pipeline":
                for _ in ("compile", "SaveTemps"):
                    next(waiting, None)
            continue
        if not token.startswith("-"):
            files.append(token)
            continue
        name, equals, value = token.partition("=")
        if len(token) == 3 and token.startswith("-O"):
            name, equals, value = "-O", "=", token[2]
        name = ALIASES.get(name, name)
        if name not in table:
            fail("EARG002", f"Illegal arguments: unrecognized arguments: {token}")
        choices = table[name]
        if choices == ():
            value = "yes"
        elif not equals:
            value = next(waiting, "")
        if choices and value not in choices:
            fail("EARG002", f"Illegal arguments: argument {name}: invalid choice: '{value}' (choose from {', '.join(choices)})")
        if name in flags and name in ("--output", "--framework", "--target", "--logfile"):
            fail("EARG002", f"Illegal arguments: {name} given twice")
        flags[name] = value
    if not set(flags.get("--implicit-integer-downcast", "all").split(",")) <= DOWNCASTS:
        fail("EARG002", "Illegal arguments: argument --implicit-integer-downcast: invalid choice")
    if len(files) != 1 or "--framework" not in flags or "--target" not in flags:
        fail("EARG002", f"Illegal arguments: one model file, --framework and --target are required, got files {files}")
    if flags["--target"] in ("trn1", "trn1n", "inf2") and flags.get("--lnc", "1") != "1":
        fail("EARG001", f"Logical NeuronCore config {flags['--lnc']} is not supported on {flags['--target']}")
    return files[0], flags


def read_program(path: Path) -> tuple[Any, bytes]:
    """The module as a proto, and the file as it is."""
    data = path.read_bytes()
    schema = load_schema()
    proto = data
    if path.suffix == ".mlir":
        from jaxlib import _jax

        proto = _jax.mlir.mlir_module_to_xla_computation(data).as_serialized_hlo_module_proto()
    elif path.suffix != ".pb":
        fail("EARG002", f"Illegal arguments: {path.name} is neither an HLO proto nor StableHLO")
    try:
        module = schema.parse(proto)
    except ValueError as error:
        fail("EVRF064", f"the HLO module cannot be parsed: {error}")
    if path.suffix == ".mlir":
        return as_neuronx_reads(module), data
    return module, data


def as_neuronx_reads(module: Any) -> Any:
    """XLA's own ids (computation in the upper half) are this double's business where it did the conversion itself."""
    for computation in module.computations:
        for instruction in computation.instructions:
            instruction.id &= 0xFFFFFFFF
            instruction.operand_ids[:] = [number & 0xFFFFFFFF for number in instruction.operand_ids]
            if instruction.opcode == "custom-call":
                instruction.custom_call_api_version = instruction.custom_call_api_version or 2
        computation.root_id &= 0xFFFFFFFF
        if computation.id == module.entry_computation_id:
            module.host_program_shape.CopyFrom(computation.program_shape)
    return module


def refuse(module: Any, flags: dict[str, str], release: tuple[int, ...]) -> None:
    rules = double("hlo_refusals")
    if rules.largest_id(module) >= 2**31 - 1:
        print("F0000 hlo_instruction.cc:1234] Check failed: unique_id_ < (2147483647)", file=sys.stderr, flush=True)
        die(signal.SIGABRT)
    found = rules.refusals(module, flags, load_schema(), release)
    for code, text, line in found:
        print(f"[ERROR] [NCC_{code}] {text}\n{line}", file=sys.stderr)
    if found:
        sys.stderr.flush()
        sys.exit(FAILED)


def misbehave(fault: str) -> None:
    if fault == "exit70":
        fail("EVRF001", "Operator fake is not supported")
    elif fault == "wordless":
        sys.exit(FAILED)
    elif fault.startswith("ncc:"):
        print(fault[4:], file=sys.stderr, flush=True)
        sys.exit(FAILED)
    elif fault == "killed":
        die(signal.SIGKILL)
    elif fault == "aborted":
        die(signal.SIGABRT)
    elif fault == "hang":  # with a child that outlives it where nobody ends the group
        child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
        Path(os.environ["FAKE_NEURONX_CC_RECORD"]).with_suffix(".pid").write_text(f"{os.getpid()} {child.pid}")
        time.sleep(600)
    elif fault == "flood":
        for _ in range(1024):
            sys.stdout.write("o" * 1023 + "\n")
            sys.stderr.write("e" * 1023 + "\n")
        sys.stdout.flush()
    elif fault == "oom":
        text = "[F137] neuronx-cc was forcibly killed - This most commonly occurs due to insufficient system memory. "
        print(f"{text}Using a smaller data type, dimensions, batch size, or a larger instance type may help.", file=sys.stderr, flush=True)
        sys.exit(FAILED)
    elif fault == "disk":
        print("OSError: [Errno 28] No space left on device: 'penguin.py'", file=sys.stderr, flush=True)
        sys.exit(FAILED)


def record(argv: list[str]) -> None:
    path = os.environ.get("FAKE_NEURONX_CC_RECORD")
    if path:
        with Path(path).open("a") as file:
            file.write(json.dumps({"argv": argv, "cwd": str(Path.cwd()), "files": sorted(p.name for p in Path().iterdir())}) + "\n")


def fail(code: str, text: str) -> NoReturn:
    print(f"[ERROR] [NCC_{code}] {text}", file=sys.stderr, flush=True)
    sys.exit(FAILED)


def die(number: signal.Signals) -> NoReturn:
    sys.stdout.flush()
    os.kill(os.getpid(), number)
    time.sleep(60)
    sys.exit(FAILED)


def stamp() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


_loaded: dict[Path, Any] = {}


def load_schema() -> Any:
    """neuron_dynamo's description of the protos, without the package around it."""
    return _load(SCHEMA)


def double(name: str) -> Any:
    return _load(HERE / f"{name}.py")


def _load(path: Path) -> Any:
    if path not in _loaded:
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None and spec.loader is not None
        _loaded[path] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(_loaded[path])
    return _loaded[path]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
