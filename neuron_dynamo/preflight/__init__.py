"""Preflight: what a target's compiler is known to refuse, found in a program before the compiler starts.

`check` judges what can be read off single ops, by the tables of rules in this package, and the program as a whole (memory, instructions) by
estimates. `refuse` in refusal.py is what the compilers call.
"""

from neuron_dynamo.preflight.checker import check
from neuron_dynamo.preflight.finding import Finding

__all__ = ["Finding", "check"]
