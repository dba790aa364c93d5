"""nn.Bilinear, forward and backward: matrix products, not a tensor of every pair."""

import torch
import torch.nn.functional as F

from tests.lowering.opcheck import check_text


def test_bilinear() -> None:
    def both(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        tensors = tuple(t.detach().requires_grad_() for t in tensors)
        result = F.bilinear(*tensors)
        return result, *torch.autograd.grad(result.sin().sum(), tensors)

    generator = torch.Generator().manual_seed(0)
    shapes = [(6, 4), (6, 5), (3, 4, 5), (3,)]
    text = check_text(both, *(torch.randn(shape, generator=generator) for shape in shapes))
    assert text.count("dot_general") >= 4
