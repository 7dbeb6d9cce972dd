"""`python -m gateway.local.convert GGUF DIRECTORY`: a GGUF as an ordinary fp32 HF model.

A process of its own: torch and the whole model leave memory with it.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig


def convert(gguf: Path, directory: Path) -> None:
    """Write config, tokenizer, chat template and dequantized safetensors to `directory`."""
    where = {"gguf_file": gguf.name}
    tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), **where)
    model = AutoModelForCausalLM.from_pretrained(
        str(gguf.parent),
        **where,
        dtype=torch.float32,
        # Without it the quantized layers stay, which cannot be saved.
        quantization_config=GgufConfig(dequantize=True),
    )
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
