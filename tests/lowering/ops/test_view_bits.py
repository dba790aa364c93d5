"""Views of the same bytes in another type."""

import pytest
import torch

from tests.lowering.opcheck import check, check_text


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.bfloat16, torch.int32, torch.float64, torch.float16, torch.int64])
def test_views_of_float32(dtype: torch.dtype) -> None:
    x = torch.arange(24, dtype=torch.int32).mul(0x01020304).view(torch.float32).reshape(3, 8)
    text = check_text(lambda x: x.view(dtype), x, rtol=0, atol=0)
    assert text.count("bitcast_convert") == 1


def test_views_of_bytes() -> None:
    x = torch.arange(64, dtype=torch.uint8).reshape(2, 32)
    check(lambda x: (x.view(torch.int8), x.view(torch.int16), x.view(torch.float32), x.view(torch.int64)), x, rtol=0, atol=0)
