"""What neuronx-cc said, as an error of ours: its code, its words, the op, the user's line, and what to do."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass

from neuron_dynamo.compilers.neuronx.process import Finished
from neuron_dynamo.compilers.neuronx.published import ENVELOPES, remedy
from neuron_dynamo.errors import CompilerError, SourceLine
from neuron_dynamo.lowering.hlo import HloModule

_CODE = re.compile(r"\[(?P<code>NCC_[A-Z]+\d{3})\]\s*(?P<message>[^\n]*)")
_ENVELOPE = re.compile(r"\[(F134|F137|F139)\]")
_INSTRUCTION = re.compile(r"%?([\w.-]+) = [^=\n]*?([a-z][a-z0-9-]*)\(")
_METADATA = re.compile(r'source_file="([^"]*)" source_line=(\d+)')
_LOCATION = re.compile(r'loc\([^\n]*?\("([^"\n]+)":(\d+)(?::\d+)?\)')
_REFUSED = 70
"""Exit code with which the compiler itself gives up on a program."""

LOG_HEADING = "--- log-neuron-cc.txt ---"
"""Line of an output after which the compiler's log file follows its streams."""
_DISK_FULL = "No space left on device"
_SIGNALS_BY_EXIT = {128 + number: number for number in (signal.SIGABRT, signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM)}
_FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM)
_LAST_LINES = 12


@dataclass(frozen=True)
class Message:
    """One coded message of the compiler: code, text, the offending line of HLO ("" if it shows none), and what that came from."""

    code: str
    text: str
    hlo: str = ""
    fx_op: str = ""
    source: SourceLine | None = None


def messages(output: str, module: HloModule) -> list[Message]:
    """Every coded message in the compiler's output, each once, in order. Codes need not be known."""
    found: dict[Message, None] = {}
    hits = list(_CODE.finditer(output))
    ends = [*(hit.start() for hit in hits[1:]), len(output)]
    for hit, end in zip(hits, ends, strict=False):
        lines = output[hit.end() : end].splitlines()[:_LAST_LINES]
        before = output[output.rfind("\n", 0, hit.start()) + 1 : hit.start()]
        found[_message(hit, before, lines, module)] = None
    return list(found)


def _message(hit: re.Match[str], before: str, after: list[str], module: HloModule) -> Message:
    code, text = hit["code"], hit["message"].strip()
    for line in (text, *after):
        match = _INSTRUCTION.search(line)
        if match is None:
            continue
        row = module.source(match[1])
        if row is None:  # the compiler renamed it; the opcode may tell, where the program has only one such line
            rows = module.opcode_sources(match[2])
            row = rows[0] if len({row.source for row in rows}) == 1 else None
        place = _METADATA.search(line)
        source = row.source if row else SourceLine(place[1], int(place[2])) if place else None
        return Message(code, text, line.strip(), row.fx_op if row else "", source)
    place = _LOCATION.search(before) or next(filter(None, map(_LOCATION.search, after)), None)
    if place is None:
        return Message(code, text)
    known = [row for row in module.sources.values() if row.source and (row.source.file, row.source.line) == (place[1], int(place[2]))]
    if known:
        return Message(code, text, "", known[0].fx_op, known[0].source)
    return Message(code, text, "", "", SourceLine(place[1], int(place[2])))


def failure(finished: Finished, output: str, version: str, module: HloModule, timeout: float | None = None) -> CompilerError:
    """The error that a failed run of neuronx-cc amounts to. `output` are its streams and its log file."""
    name = f"neuronx-cc {version}"
    if finished.timed_out:
        what = f"{name} was ended after {finished.seconds:.0f} s, the limit that option 'compiler_timeout' sets ({timeout:g} s)"
        return CompilerError(what, remedy="raise the limit, or compile a smaller graph", transient=True, log=output)
    if _DISK_FULL in output:
        return CompilerError(f"{name} met a full disk", remedy="free space in TMPDIR, or set it elsewhere", transient=True, log=output)
    envelope = _ENVELOPE.search(output)
    number = -finished.returncode if finished.returncode < 0 else _SIGNALS_BY_EXIT.get(finished.returncode, 0)
    coded = messages(_causes(output), module)
    # Ended from outside it has no last word: what it said before need not be why. An envelope tells that it was only a child of its own.
    from_outside = number in _FROM_OUTSIDE and envelope is None
    if from_outside or (not coded and (number or envelope)):
        return _interrupted(name, number, envelope[1] if envelope else "", output, coded)
    if not coded:
        what = f"{name} failed with exit code {finished.returncode}; its last words:\n{_tail(output)}"
        # Without a word of its own, only its exit code tells the compiler's answer from a broken installation of it.
        mended = finished.returncode != _REFUSED
        return CompilerError(what, remedy="its whole output is this error's `log`", transient=mended, log=output)
    first = coded[0]
    others = [f"\n  also [{message.code}] {message.text}" + (f"\n    {message.hlo}" if message.hlo else "") for message in coded[1:]]
    return CompilerError(
        f"{name} refused the program: [{first.code}] {first.text}{''.join(others)}",
        op=" ".join(filter(None, (first.fx_op, first.hlo))),
        source=first.source,
        remedy=remedy(first.code) or "see the compiler's message; its whole output is this error's `log`",
        vendor_code=first.code,
        log=output,
    )


def _causes(output: str) -> str:
    """The part of an output in which its cause can stand: all of the streams and of the log file that is not below the last envelope."""
    parts = output.partition(LOG_HEADING)[::2]
    ends = [[hit.start() for hit in _ENVELOPE.finditer(part)] for part in parts]
    return "\n".join(part[: end[-1]] if end else part for part, end in zip(parts, ends, strict=True))


def _interrupted(name: str, number: int, envelope: str, output: str, said: list[Message]) -> CompilerError:
    by = f"signal {signal.Signals(number).name}" if number in set(signal.Signals) else f"a signal ([{envelope}])"
    reason = ENVELOPES.get(envelope or f"F{128 + number}", "")
    advice: Mapping[bool, str] = {
        True: "give it more memory: fewer compiles at once (option 'compiler_jobs'), a machine with more, a smaller graph, or -O1",
        False: "try once more; if it happens again, report it to AWS with the error's `log`",
    }
    out_of_memory = number == signal.SIGKILL or envelope == "F137"
    before = "".join(f"\n  before that it said [{message.code}] {message.text}" for message in said)
    what = f"{name} was ended by {by}" + (f": {reason}" if reason else "") + before
    return CompilerError(what, remedy=advice[out_of_memory], transient=True, vendor_code=envelope, log=output)


def _tail(output: str) -> str:
    lines = [line for line in output.splitlines() if line.strip()]
    return "\n".join(f"    {line}" for line in lines[-_LAST_LINES:]) or "    (nothing)"
