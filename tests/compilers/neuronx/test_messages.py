"""What the compiler said, in every form that it was seen to say it."""

from __future__ import annotations

import signal

import pytest

from neuron_dynamo.compilers.neuronx.messages import LOG_HEADING, failure, messages
from neuron_dynamo.compilers.neuronx.process import Finished
from neuron_dynamo.errors import CompilerError, SourceLine
from neuron_dynamo.lowering.hlo import HloModule
from neuron_dynamo.lowering.program import OpSource

SORT = OpSource(3, "stablehlo.sort", "sort", "aten.sort.default", SourceLine("net.py", 21, "head", "x.sort()"))
ADD = OpSource(4, "stablehlo.add", "add", "aten.add.Tensor", SourceLine("net.py", 30))
OTHER = OpSource(5, "stablehlo.add", "add_1", "aten.add.Tensor", SourceLine("net.py", 31))
MODULE = HloModule(b"", {"sort.4": SORT, "add.5": ADD, "add.6": OTHER})
LINE = "%sort.4 = u32[256]{0} sort(%reshape.371), dimensions={0}"
REFUSAL = f"[ERROR] [NCC_EVRF029] Operation sort is not supported on trn2. Use supported equivalent operation like TopK\n{LINE}\n"


def error(output: str, returncode: int = 70, timed_out: bool = False) -> CompilerError:
    return failure(Finished(returncode, output, 5.0, timed_out), output, "2.27.1", MODULE, 5.0)


def test_the_op_and_the_users_line():
    (message,) = messages(REFUSAL, MODULE)
    assert (message.code, message.hlo, message.fx_op, message.source) == ("NCC_EVRF029", LINE, "aten.sort.default", SORT.source)
    found = error(REFUSAL)
    assert (found.vendor_code, found.source, found.transient, found.log) == ("NCC_EVRF029", SORT.source, False, REFUSAL)
    text = str(found)
    assert text.startswith("ND020: neuronx-cc 2.27.1 refused the program: [NCC_EVRF029] Operation sort is not supported on trn2")
    assert f"op: aten.sort.default {LINE}" in text and "net.py:21 in module head" in text and "x.sort()" in text
    assert "the target has no sort" in found.remedy


def test_a_name_that_the_compiler_changed():
    (message,) = messages(REFUSAL.replace("sort.4", "sort.0"), MODULE)
    assert (message.fx_op, message.source) == ("aten.sort.default", SORT.source)
    (message,) = messages("[NCC_EVRF001] no\n%add.0 = f32[4]{0} add(%x, %y)", MODULE)
    assert message.source is None  # two lines of the user's have an add


def test_the_metadata_of_an_unknown_line():
    line = '%fusion.9 = (f32[4]{0}, s32[2,2]{1,0}) fusion(%x), metadata={op_type="o" op_name="n" source_file="b.py" source_line=8}'
    (message,) = messages(f"[NCC_EXTP004] too big\n{line}", MODULE)
    assert (message.hlo, message.source) == (line, SourceLine("b.py", 8))


def test_the_mlir_form():
    (message,) = messages('loc(fused<772>["Sort"("net.py":21)]): error: [NCC_EVRF029] no sort', MODULE)
    assert (message.text, message.fx_op, message.source) == ("no sort", "aten.sort.default", SORT.source)
    (message,) = messages('loc(fused<772>["Op"("file.py":772)]): error: [NCC_ITEN406] strided', MODULE)
    assert message.source == SourceLine("file.py", 772)


def test_the_older_form():
    found = error("ERROR 103915 [neuronx-cc]: [NCC_EBVF030] The number of instructions generated exceeds the limit")
    assert found.vendor_code == "NCC_EBVF030" and "smaller graph" in found.remedy


def test_every_code_once_in_order():
    text = REFUSAL + "[NCC_EVRF004] complex\n" + REFUSAL
    assert [message.code for message in messages(text, MODULE)] == ["NCC_EVRF029", "NCC_EVRF004"]
    assert "also [NCC_EVRF004] complex" in str(error(text))


def test_an_unknown_code_passes_through():
    found = error("[NCC_QQQQ999] Something new happened")
    assert found.vendor_code == "NCC_QQQQ999" and "[NCC_QQQQ999] Something new happened" in str(found)
    assert "see the compiler's message" in found.remedy


def test_no_code_at_all():
    found = error("\n".join(f"line {number}" for number in range(40)))
    assert "exit code 70" in str(found) and "line 39" in str(found) and "line 2\n" not in str(found)
    assert not found.transient
    assert error("Traceback: no module named neuronxcc", returncode=1).transient  # the installation is broken, not the program
    assert "(nothing)" in str(error(""))


@pytest.mark.parametrize(
    ("returncode", "output", "says"),
    [
        (-9, "", "ended by signal SIGKILL: the system killed it, most often for want of memory"),
        (137, "", "ended by signal SIGKILL"),
        (70, "[F137] neuronx-cc was forcibly killed - insufficient system memory", r"ended by a signal \(\[F137\]\): the system killed"),
        (-6, "", "ended by signal SIGABRT: it aborted"),
        (-11, "", "ended by signal SIGSEGV: it crashed"),
        (70, "[F139] x", r"a signal \(\[F139\]\): it crashed"),
        (-15, "", "ended by signal SIGTERM"),
    ],
)
def test_signals(returncode, output, says):
    with pytest.raises(CompilerError, match=says) as caught:
        raise error(output, returncode)
    assert caught.value.transient
    assert ("compiler_jobs" in caught.value.remedy) == ("KILL" in says or "F137" in says)


FORCED = "[F137] neuronx-cc was forcibly killed - This most commonly occurs due to insufficient system memory"


@pytest.mark.parametrize("returncode", [70, 137, -signal.SIGKILL])
def test_the_cause_stands_above_its_envelope(returncode):
    found = error(f"[ERROR] [NCC_EOOM001] needs 40 GB of HBM\n{FORCED}\n", returncode)
    assert (found.vendor_code, found.transient) == ("NCC_EOOM001", False)
    assert "the device's memory does not hold it" in found.remedy and "compiler_jobs" not in found.remedy
    assert "refused the program: [NCC_EOOM001] needs 40 GB of HBM" in str(found) and "F137" not in str(found)
    found = error(f"{FORCED}\n{LOG_HEADING}\n{REFUSAL}{FORCED}\n", returncode)
    assert (found.vendor_code, found.transient, found.source) == ("NCC_EVRF029", False, SORT.source)


def test_the_cause_of_an_abort():
    found = error(REFUSAL + "[F134] neuronx-cc terminated abnormally", -signal.SIGABRT)
    assert (found.vendor_code, found.transient) == ("NCC_EVRF029", False)


def test_what_stands_below_an_envelope_comes_of_it():
    found = error(f"{FORCED}\n[NCC_EXXX001] a job failed\n")
    assert (found.vendor_code, found.transient) == ("F137", True) and "compiler_jobs" in found.remedy


@pytest.mark.parametrize("returncode", [-signal.SIGKILL, -signal.SIGTERM])
def test_what_it_said_before_it_was_ended_from_outside_need_not_be_why(returncode):
    found = error(REFUSAL, returncode)
    assert found.transient and "before that it said [NCC_EVRF029] Operation sort" in str(found)


def test_time_and_disk():
    found = error(REFUSAL, -15, timed_out=True)
    assert "ended after 5 s, the limit that option 'compiler_timeout' sets (5 s)" in str(found) and found.transient
    found = error("OSError: [Errno 28] No space left on device: 'x'")
    assert "full disk" in str(found) and found.transient
