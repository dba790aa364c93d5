"""docs/trainium.md says what the code says: options, environment variables, commands, codes, files and the compiler's command line."""

from __future__ import annotations

import re
from dataclasses import fields

from neuron_dynamo.cli.main import build_parser
from neuron_dynamo.compilers.neuronx.arguments import arguments
from neuron_dynamo.lowering.hlo import custom_calls
from neuron_dynamo.options import Options
from tools import _readme

ROOT = _readme.README.parent
TEXT = (ROOT / "docs" / "trainium.md").read_text()
OPTIONS = {field.name: field for field in fields(Options)}


def sources(folder: str) -> str:
    return "\n".join(path.read_text() for path in (ROOT / folder).rglob("*.py"))


def test_it_is_linked_and_says_that_no_device_was_there() -> None:
    assert "(docs/trainium.md)" in _readme.README.read_text()
    assert "has ever run on a Neuron device" in TEXT


def test_the_options_exist_with_these_variables() -> None:
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \|", TEXT, re.MULTILINE)
    assert len(rows) >= 14
    assert dict(rows) == {name: OPTIONS[name].metadata["env"] for name, _ in rows}
    neuron_only = {"lnc", "emulate", "runtime", "resident"} | {
        name for name in OPTIONS if re.match("compiler|neuron|custom_calls|libnrt", name)
    }
    assert neuron_only <= {name for name, _ in rows}
    for name, value in re.findall(r'`?(?:options=\{")?(\w+)"?[=:] ?"(\w+)"', TEXT):
        if name in OPTIONS and OPTIONS[name].metadata["choices"]:
            assert value in OPTIONS[name].metadata["choices"], (name, value)


def test_the_environment_variables_are_read() -> None:
    package, tests = sources("neuron_dynamo"), sources("tests")
    for variable in set(re.findall(r"\bNEURON_[A-Z_]+\b", TEXT)):
        assert variable in package or variable in tests, variable


def test_the_commands_parse() -> None:
    lines = re.findall(r"neuron-dynamo ((?:doctor|check|warmup|cache) [^`#\n]+)", TEXT)
    assert len(lines) == 4
    for line in lines:
        build_parser().parse_args(line.split())


def test_the_codes_exist() -> None:
    assert set(re.findall(r"\bND\d{3}\b", TEXT)) <= {code for code, _, _ in _readme.error_codes()}
    preflight = sources("neuron_dynamo/preflight")
    for code in re.findall(r"\bEVRF\d{3}\b", TEXT):
        assert code in preflight, code


def test_the_files_exist() -> None:
    for name in re.findall(r"`((?:lowering|preflight|compilers|runtime|passes)(?:/[\w*.]+)*|neff\.py)`", TEXT):
        assert list((ROOT / "neuron_dynamo").glob(name)), name
    for name in re.findall(r"^- `(\w+\.\w+)`:", TEXT, re.MULTILINE):
        assert (ROOT / "tests" / "doubles" / name).is_file(), name


def test_the_command_line() -> None:
    (line,) = re.findall(r"`neuronx-cc compile module\.hlo\.pb ([^`]+)`", TEXT)
    assert tuple(line.split()) == arguments(Options.resolve({"target": "trn2"}, environ={}), (2, 27))
    older = arguments(Options.resolve({"target": "trn2"}, environ={}), (2, 26))
    assert older == tuple(line.split()[: len(older)]) and line.split()[len(older)] == "--native-int64"
    trn1 = arguments(Options.resolve({"target": "trn1"}, environ={}), (2, 27))
    assert "--lnc" not in trn1 and "--native-int64" not in trn1 and "--implicit-integer-downcast" in trn1


def test_the_custom_calls_are_those_that_are_written() -> None:
    (named,) = re.findall(r"custom calls for ([^(|]+) \(`custom_calls=True`\)", TEXT)
    said = set(re.split(", | and ", named))
    assert {"gelu", "silu", "softmax", "rms_norm", "topk"} == {name.removesuffix("_backward") for name in custom_calls._WRITERS}
    assert said == {"GELU", "SiLU", "softmax", "RMSNorm", "top-k"}
