"""What the vendor's catalogue of error codes advises, in short. A code that is not here is passed on as it is."""

from __future__ import annotations

_SMALLER = "compile a smaller graph: a smaller batch, or the model split over several devices"
_BUG = 'neuron_dynamo should not have emitted this; please report it, with the program that options={"dump_dir": ...} writes'
_INTEGERS = "compute in float32 where values may pass 2^24, or pass --implicit-integer-downcast=all"
_REMEDIES = {
    "EARG001": "set option 'lnc' to 1: this target has one physical core to a logical one",
    "EARG002": "see the compiler's usage above; its arguments come from options 'compiler_args' and NEURON_CC_FLAGS",
    "EBVF030": _SMALLER,
    "EVRF007": _SMALLER,
    "EXTP004": _SMALLER,
    "EHCA005": "use StableHLO ops, or one of the custom calls that the vendor lists",
    "EVRF015": "use StableHLO ops, or one of the custom calls that the vendor lists",
    "EMOD025": "compile with dynamic=False; pad to a few fixed sizes",
    "EOOM001": f"the device's memory does not hold it; {_SMALLER}",
    "EOOM002": f"the device's memory does not hold it; {_SMALLER}",
    "EVRF009": f"the device's memory does not hold it; {_SMALLER}",
    "EXSP001": f"the device's memory does not hold it; {_SMALLER}",
    "ESFH002": "use uint32: the constant does not fit 32 bits",
    "ESPP004": "use another type: this one has no code generation",
    "ESPP047": "use float8_e5m2, or float16",
    "EUOC002": "run the op on the host, or write it with ops that the compiler has",
    "EVRF001": "run the op on the host, or write it with ops that the compiler has",
    "EVRF004": "compute on real and imaginary parts",
    "EVRF005": "use float8_e5m2, or a 16-bit type",
    "EVRF006": "use the default random algorithm",
    "EVRF010": "dilate either the input or the kernel by padding",
    "EVRF011": "dilate the input by padding",
    "EVRF013": "convert to float32 before the top-k",
    "EVRF016": "scatter float32 instead",
    "EVRF017": "pad between the elements first",
    "EVRF018": "combine slices of the input",
    "EVRF019": "reduce each tensor by itself",
    "EVRF022": "convert to int32 first",
    "EVRF029": "run it on the host, or use topk: the target has no sort",
    "EVRF031": "drop the indices that are out of range",
    "EVRF035": _INTEGERS,
    "EVRF051": "use float8_e5m2, or target trn3",
    "EVRF052": "use float8_e4m3fn",
    "EVRF056": "drop the indices that are out of range",
    "EVRF059": "the file of an NKI kernel is gone: trace the kernel again",
    "EVRF060": _INTEGERS,
    "EVRF061": _INTEGERS,
    "EVRF062": "use int32, or pass --implicit-integer-downcast=all",
    "EVRF063": _INTEGERS,
    "EVRF064": _BUG,
    "EVRF065": "trace the NKI kernel again with the NKI of this SDK",
    "INLA001": "the on-chip memory of one partition does not hold it; make the innermost dimension smaller",
}
ENVELOPES = {
    "F134": "it aborted",
    "F137": "the system killed it, most often for want of memory",
    "F139": "it crashed with a segmentation fault",
}
"""Codes that the compiler prints for a child of its own that a signal ended (128 + signal); an NCC line above one is the cause."""


def remedy(code: str) -> str:
    """Advice for a code such as NCC_EVRF029, "" for one that is not in the catalogue."""
    return _REMEDIES.get(code.removeprefix("NCC_"), "")
