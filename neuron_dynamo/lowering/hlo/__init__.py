"""What neuronx-cc reads of a Program: an HLO proto that follows the vendor's rules, or StableHLO bytecode.

`emit` writes the proto and `verify` checks it against every rule; `bytecode` writes the other form. Neither takes part in a cache key:
both follow from the Program and from this package's sources.
"""

from neuron_dynamo.lowering.hlo.bytecode import bytecode
from neuron_dynamo.lowering.hlo.emit import HloModule, emit
from neuron_dynamo.lowering.hlo.verify import verify

__all__ = ["HloModule", "bytecode", "emit", "verify"]
