"""Warm a Llama of 70B parameters from fake tensors, and say what that took. `tools/warm_llama` runs it; LAYERS=2 makes it quick."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from typing import Any

_COMMAND = "import sys; from neuron_dynamo.cli.main import main; sys.exit(main())"


def make() -> Any:
    """Llama 3's 70B configuration in bfloat16, with LAYERS of its 80 layers."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=8192,
        num_hidden_layers=int(os.environ.get("LAYERS", "80")),
        num_attention_heads=64,
        num_key_value_heads=8,
        intermediate_size=28672,
        vocab_size=128256,
        use_cache=False,
    )
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        return LlamaForCausalLM(config)
    finally:
        torch.set_default_dtype(before)


def main() -> int:
    given = ["model", "tools._warm_llama:make", "--shape", "input_ids=1x128", "--jobs", "1", *sys.argv[1:]]
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "NEURON_DYNAMO_CACHE_DIR": f"{folder}/neuron", "TORCHINDUCTOR_CACHE_DIR": f"{folder}/torch"}
        start = time.perf_counter()
        code = subprocess.run([sys.executable, "-c", _COMMAND, "warmup", *given], env=environment, check=False).returncode
        seconds = time.perf_counter() - start
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"{seconds:.0f} s, {used.ru_utime + used.ru_stime:.0f} s of processors, {used.ru_maxrss / 1024:.0f} MB in the largest process")
    return code


if __name__ == "__main__":
    sys.exit(main())
