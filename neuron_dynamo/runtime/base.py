"""What every executable is: tensors in, tensors out."""

from __future__ import annotations

from typing import Protocol

import torch

from neuron_dynamo.lowering.program import Signature


class Executable(Protocol):
    """A loaded artifact. Thread-safe.

    Takes CPU tensors in the order of `signature.inputs`, with exactly those shapes and dtypes but any strides, offset or
    alignment, and returns fresh dense row-major tensors in the order of `signature.outputs`. Inputs are only read.
    Raises ExecutionError where an input does not fit the signature.
    """

    signature: Signature

    def __call__(self, inputs: list[torch.Tensor]) -> list[torch.Tensor]: ...
