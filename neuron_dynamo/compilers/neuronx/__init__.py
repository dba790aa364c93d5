"""The Neuron targets' compiler: neuronx-cc, driven as a subprocess.

find.py (which program it is), arguments.py (its command line), slots.py (how many at once), process.py (running it), messages.py (what it
said), artifact.py (what is kept), compiler.py (all of it together), emulation.py (without a device), absent.py (without a compiler).
"""

from neuron_dynamo.compilers.neuronx.absent import absent_compiler
from neuron_dynamo.compilers.neuronx.compiler import NeuronxCompiler
from neuron_dynamo.compilers.neuronx.emulation import EmulatingCompiler

__all__ = ["EmulatingCompiler", "NeuronxCompiler", "absent_compiler"]
