"""`make bench-train`: what a step of training takes, against TRL's GRPO trainer on the same batch.

Tokens per second and peak memory of a step on 8 samples of 512 tokens, half of each sampled:
`torch_lora` and `torch_full` are the torch back end, `megatron_full` Megatron-core where it is
installed (on a CPU behind the tests' shim), `trl_lora` and `trl_full` TRL as it comes, in an
environment of its own from `locks/bench-trl.txt`, `hf_full` a plain loop. Both of ours recompute
layers, as TRL does by default. Each runs in a process of its own, one after the other, in rounds;
figures are medians over rounds. On a CPU one thread, and seconds are the process's own.

Everything goes to `build/bench/train.json`: `tokens_per_s`, `peak_mb` (above the libraries), and
`ratios` to TRL training the same weights (throughput: above 1 is faster; memory: below 1 is less),
or to the plain loop where TRL does not run. On SmolLM2-135M; with `QUICK=1` on a made-up model of
18 million weights.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import random
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from gateway.local.cache import cache_dir
from gateway.local.environments import Environment, checkout
from gateway.local.model import ensure_model
from tests.tiny_model import make_model

OUT = Path("build/bench/train.json")
SAMPLES, PROMPT, REPLY, RANK, LR = 8, 256, 256, 16, 1e-5
TOKENS = SAMPLES * (PROMPT + REPLY)
#: Of each run, the first is left out.
STEPS = 2
ROUNDS = 2
LIMIT_S = 1800

OURS = ("torch_lora", "torch_full", "megatron_full")
THEIRS = ("trl_lora", "trl_full")


def main() -> None:
    quick = bool(os.environ.get("QUICK"))
    console = Console()
    with tempfile.TemporaryDirectory() as home:
        model = small_model(Path(home) / "model") if quick else ensure_model()
        case = Path(home) / "case.json"
        case.write_text(json.dumps(make_case(model)))
        runs = contenders(case, lambda line: console.print(f"bench: {line}"))
        found: dict[str, list[dict[str, float]]] = defaultdict(list)
        for number in range(ROUNDS):
            for name, command in runs.items():
                if (figures := measured(command)) is None:
                    console.print(f"bench: {name} does not run here")
                    continue
                found[name].append(figures)
                console.print(f"bench: round {number + 1}, {name}: {figures}")
            report = summary(found, "made up, 18M" if quick else model.name)
            OUT.parent.mkdir(parents=True, exist_ok=True)
            OUT.write_text(json.dumps(report, indent=1) + "\n")
    console.print(table(report))


def make_case(model: Path) -> dict[str, Any]:
    """A batch that everybody trains on; its ids are drawn, so no reply ends early."""
    rng = random.Random(0)

    def ids(count: int) -> list[list[int]]:
        return [[rng.randrange(256) for _ in range(count)] for _ in range(SAMPLES)]

    return {
        "model": str(model),
        "prompts": ids(PROMPT),
        "replies": ids(REPLY),
        "logprobs": [[-5.0] * REPLY] * SAMPLES,
        "scores": [1.0, -1.0] * (SAMPLES // 2),
        "steps": STEPS,
        "rank": RANK,
        "lr": LR,
    }


def small_model(directory: Path) -> Path:
    """A Llama of 18 million weights with a vocabulary of real size."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    make_model(directory, family="llama")
    config = LlamaConfig(
        vocab_size=49_152, hidden_size=256, intermediate_size=768, num_hidden_layers=6,
        num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=2048,
        tie_word_embeddings=True, bos_token_id=None, eos_token_id=0, pad_token_id=0,
    )  # fmt: skip
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(directory)
    return directory


def contenders(case: Path, say: Callable[[str], None]) -> dict[str, list[str]]:
    """Commands by name; the environment of TRL is built the first time."""
    ours = [name for name in OURS if name != "megatron_full" or _installed("megatron")]
    runs = {
        name: [sys.executable, "-m", "bench.train_step", name, str(case)]
        for name in (*ours, "hf_full")
    }
    python, script = trl_python(say), Path(__file__).with_name("trl_step.py")
    # One of ours, one of theirs, and so on.
    theirs = {name: [str(python), str(script), name, str(case)] for name in THEIRS}
    order = ["torch_lora", "trl_lora", "torch_full", "trl_full", "megatron_full", "hf_full"]
    both = runs | theirs
    return {name: both[name] for name in order if name in both}


def trl_python(say: Callable[[str], None]) -> Path:
    """The interpreter of TRL's environment: the lock, and the same torch as ours.

    The lock holds no torch, since a build for the CPU has other hashes than one for CUDA.
    """
    lock = checkout() / "locks" / "bench-trl.txt"
    torch = importlib.metadata.version("torch")
    digest = Environment(Path(), (lock,), torch=False).digest[:16]
    home = Environment(cache_dir() / f"bench-trl-{digest}-{torch}", (lock,), torch=False)
    python = home.ensure(say)
    if not list(home.directory.glob("lib/*/site-packages/torch")):
        subprocess.run([str(python), "-m", "pip", "install", "-q", f"torch=={torch}"], check=True)
    return python


def measured(command: list[str]) -> dict[str, float] | None:
    """What a run says of itself; None where it failed, its last words on the terminal."""
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=LIMIT_S, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    if done.returncode:
        sys.stderr.write("\n".join(done.stderr.splitlines()[-5:]) + "\n")
        return None
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def summary(found: dict[str, list[dict[str, float]]], model: str) -> dict[str, Any]:
    """Medians over rounds, and what they are of the baseline's."""
    speed = {name: TOKENS / median(run["seconds"] for run in runs) for name, runs in found.items()}
    memory = {name: median(run["peak_mb"] for run in runs) for name, runs in found.items()}
    ratios = {}
    for name in OURS:
        kind = name.partition("_")[2]
        baseline = f"trl_{kind}" if f"trl_{kind}" in found else "hf_full"
        if name in found and baseline in found:
            ratios[name] = {
                "baseline": baseline,
                "tokens_per_s": round(speed[name] / speed[baseline], 3),
                "peak_mb": round(memory[name] / memory[baseline], 3),
            }
    return {
        "model": model,
        "tokens": TOKENS,
        "rounds": max(map(len, found.values())),
        "tokens_per_s": {name: round(value, 1) for name, value in speed.items()},
        "peak_mb": {name: round(value, 1) for name, value in memory.items()},
        "ratios": ratios,
    }


def table(report: dict[str, Any]) -> Table:
    shown = Table(title=f"A step on {report['tokens']} tokens, {report['model']}")
    for heading in ("", "tokens/s", "peak MB", "against", "throughput", "memory"):
        shown.add_column(heading, justify="left" if heading in ("", "against") else "right")
    for name, value in report["tokens_per_s"].items():
        ratio = report["ratios"].get(name)
        cells = [] if ratio is None else [
            ratio["baseline"], f"{ratio['tokens_per_s']:.2f}x", f"{ratio['peak_mb']:.2f}x"
        ]  # fmt: skip
        shown.add_row(name, f"{value:.0f}", f"{report['peak_mb'][name]:.0f}", *cells)
    return shown


def _installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


if __name__ == "__main__":
    main()
