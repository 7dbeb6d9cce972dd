from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from gateway.config import EngineSettings
from gateway.engine.sglang import SglangEngine
from gateway.errors import EngineTimeout, EngineUnavailable
from gateway.local.sglang import STUBS, LoraLimits, launch_command, wait_ready
from tests.fakes import FakeSglang
from tests.fixtures_engine import free_port


def values(argv: Sequence[str], flag: str) -> list[str]:
    """What follows a flag, up to the next one."""
    start = argv.index(flag) + 1
    rest = [*argv[start:], "--"]
    return rest[: next(i for i, word in enumerate(rest) if word.startswith("--"))]


def test_a_cpu_engine_has_the_stand_ins_and_one_thread() -> None:
    argv, env = launch_command(
        "/venv/python", Path("/model"), 31199, device="cpu", served_name="m", lora=LoraLimits()
    )
    assert argv[:3] == ["/venv/python", "-m", "sglang.launch_server"]
    assert values(argv, "--model-path") == ["/model"]
    assert values(argv, "--port") == ["31199"]
    assert values(argv, "--device") == ["cpu"]
    assert values(argv, "--dtype") == ["float32"]
    assert values(argv, "--lora-backend") == ["torch_native"]
    assert "--incremental-streaming-output" in argv
    assert "--sleep-on-idle" in argv
    assert (env["OMP_NUM_THREADS"], env["PYTHONPATH"]) == ("1", str(STUBS))
    assert {path.name for path in STUBS.iterdir()} >= {"sgl_kernel", "torchvision"}


def test_a_gpu_engine_is_told_nothing_of_the_cpu() -> None:
    argv, env = launch_command(
        "python", "/model", 1, device="cuda", served_name="m", lora=LoraLimits()
    )
    for flag in ("--device", "--dtype", "--attention-backend", "--sampling-backend",
                 "--lora-backend", "--cuda-graph-backend-decode", "--sleep-on-idle"):  # fmt: skip
        assert flag not in argv
    assert not {"PYTHONPATH", "OMP_NUM_THREADS", "SGLANG_USE_CPU_ENGINE"} & env.keys()
    assert values(argv, "--grammar-backend") == ["xgrammar"]


def test_limits_are_said_where_they_are_set() -> None:
    plain, _ = launch_command("python", "/model", 1, device="cuda", served_name="m")
    assert not {"--enable-lora", "--max-total-tokens", "--max-queued-requests"} & set(plain)
    argv, _ = launch_command(
        "python", "/model", 1, device="cuda", served_name="m",
        lora=LoraLimits(max_rank=32, per_batch=4, loaded=6, target_modules=("q_proj", "v_proj")),
        max_total_tokens=100, max_running=3, max_queued=9, context_length=50, memory_fraction=0.5,
    )  # fmt: skip
    assert values(argv, "--max-lora-rank") == ["32"]
    assert values(argv, "--max-loras-per-batch") == ["4"]
    assert values(argv, "--max-loaded-loras") == ["6"]
    assert values(argv, "--lora-target-modules") == ["q_proj", "v_proj"]
    assert values(argv, "--max-total-tokens") == ["100"]
    assert values(argv, "--max-running-requests") == ["3"]
    assert values(argv, "--max-queued-requests") == ["9"]
    assert values(argv, "--context-length") == ["50"]
    assert values(argv, "--mem-fraction-static") == ["0.5"]


async def test_ready_means_that_a_token_was_sampled(fake_sglang: FakeSglang) -> None:
    engine = SglangEngine(EngineSettings(url=fake_sglang.url))
    fake_sglang.faults.refuse_once.append((503, "starting"))
    assert await wait_ready(engine, 30) > 0
    assert len(fake_sglang.requests) == 2
    await engine.close()


async def test_waiting_ends_with_the_reason() -> None:
    engine = SglangEngine(EngineSettings(url=f"http://127.0.0.1:{free_port()}"))
    with pytest.raises(EngineTimeout, match="not ready after 0 s: cannot be reached"):
        await wait_ready(engine, 0.2)
    with pytest.raises(EngineUnavailable, match="ended while it was starting"):
        await wait_ready(engine, 30, alive=lambda: False)
    await engine.close()
