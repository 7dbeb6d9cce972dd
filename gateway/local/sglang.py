"""How SGLang is started on this machine, on a CPU or a GPU, and when it is ready."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from gateway.device import Device
from gateway.engine.base import Engine
from gateway.errors import EngineError, EngineTimeout, EngineUnavailable
from gateway.records import Generation, PolicyKind, PolicyRef, Sampling, new_id

#: Import stand-ins for two wheels that cannot be had without CUDA.
STUBS = Path(__file__).parent / "stubs"

_POLL_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraLimits:
    """What adapters an engine takes.

    `per_batch` counts the base model as one; requests of more adapters wait for a place.
    `loaded` is left open by default: at a limit the server evicts the adapter used least
    recently, and waits for it where it is busy.
    """

    max_rank: int = 16
    per_batch: int = 8
    loaded: int | None = None
    target_modules: Sequence[str] = (
        "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj",
    )  # fmt: skip


def launch_command(
    python: Path | str,
    model_path: Path | str,
    port: int,
    *,
    device: Device,
    served_name: str,
    host: str = "127.0.0.1",
    lora: LoraLimits | None = None,
    max_total_tokens: int | None = None,
    max_running: int | None = None,
    max_queued: int | None = None,
    context_length: int | None = None,
    memory_fraction: float | None = None,
    seed: int = 0,
) -> tuple[list[str], dict[str, str]]:
    """The command line and the variables to set over the parent's environment.

    On a CPU the engine runs in float32 on one thread: bfloat16 is slower without AMX, and more
    threads starve a trainer beside it.
    """
    argv = [
        str(python), "-m", "sglang.launch_server",
        "--model-path", str(model_path),
        "--served-model-name", served_name,
        "--host", host,
        "--port", str(port),
        "--grammar-backend", "xgrammar",
        "--incremental-streaming-output",
        "--enable-metrics",
        "--random-seed", str(seed),
    ]  # fmt: skip
    limits = {
        "--max-total-tokens": max_total_tokens,
        "--max-running-requests": max_running,
        "--max-queued-requests": max_queued,
        "--context-length": context_length,
        "--mem-fraction-static": memory_fraction,
    }
    for flag, value in limits.items():
        if value is not None:
            argv += [flag, str(value)]
    if lora is not None:
        argv += [
            "--enable-lora",
            "--max-lora-rank", str(lora.max_rank),
            "--max-loras-per-batch", str(lora.per_batch),
            "--lora-target-modules", *lora.target_modules,
        ]  # fmt: skip
        if lora.loaded is not None:
            argv += ["--max-loaded-loras", str(lora.loaded)]
    env = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    if device == "cpu":
        argv += [
            "--device", "cpu",
            "--dtype", "float32",
            "--attention-backend", "torch_native",
            "--sampling-backend", "pytorch",
            "--cuda-graph-backend-decode", "disabled",
            "--cuda-graph-backend-prefill", "disabled",
            # Its scheduler would otherwise spin through an idle core that a trainer could use.
            "--sleep-on-idle",
        ]  # fmt: skip
        if lora is not None:
            argv += ["--lora-backend", "torch_native"]
        env |= {
            "SGLANG_USE_CPU_ENGINE": "1",
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "PYTHONPATH": str(STUBS),
        }
    return argv, env


async def wait_ready(
    engine: Engine, timeout_s: float, *, alive: Callable[[], bool] = lambda: True
) -> float:
    """Wait until an engine that is starting has sampled a token; the seconds it took.

    `/health` is of no use: it blocks for 20 s while the engine is paused. Raises EngineTimeout,
    and EngineUnavailable as soon as its process is not `alive`.
    """
    started = time.monotonic()
    last: EngineError | None = None
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                try:
                    await engine.status()
                    await _probe(engine)
                except EngineError as error:
                    if not alive():
                        raise EngineUnavailable(
                            "the engine ended while it was starting", engine=engine.name
                        ) from error
                    last = error
                    await asyncio.sleep(_POLL_S)
                else:
                    return time.monotonic() - started
    except TimeoutError:
        reason = last.message if last is not None else "no answer"
        raise EngineTimeout(
            f"not ready after {timeout_s:.0f} s: {reason}", engine=engine.name
        ) from None


async def _probe(engine: Engine) -> None:
    request = Generation(
        rid=f"ready-{new_id().hex}",
        input_ids=(0,),
        sampling=Sampling(temperature=0.0, max_tokens=1),
        policy=PolicyRef(lineage_id=UUID(int=0), version=0, kind=PolicyKind.BASE),
    )
    async for _ in engine.generate(request):
        pass
