"""gcd, lcm and hash_tensor against eager."""

import pytest
import torch

from tests.lowering.opcheck import check


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int64], ids=str)
def test_gcd_and_lcm(dtype: torch.dtype) -> None:
    x = torch.tensor([0, 0, 1, 12, 54, 100, 7, 17, 90], dtype=dtype)
    y = torch.tensor([0, 5, 0, 18, 24, 75, 7, 1, 60], dtype=dtype)
    check(lambda x, y: (torch.gcd(x, y), torch.lcm(x, y[:1]), torch.gcd(x[:, None], y)), x, y)
    if dtype.is_signed:
        check(lambda x, y: (torch.gcd(x, y), torch.lcm(x, y)), -x, y)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32, torch.bool], ids=str)
def test_hash(dtype: torch.dtype) -> None:
    x = torch.tensor([[1.5, -2.0, 0.0], [3.0, 4.0, -0.0]]).to(dtype)
    check(lambda x: (torch.hash_tensor(x), torch.hash_tensor(x, dim=1), torch.hash_tensor(x, dim=0, keepdim=True)), x)
