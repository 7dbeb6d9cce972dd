"""What the stack's processes are started with."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from gateway.config import EngineSettings, ModelSettings
from gateway.errors import StackError
from gateway.local import processes
from gateway.local.config import LocalConfig, LocalSettings
from gateway.local.processes import free_port
from trainer.config import LoraSettings, TrainerConfig


def settings(**local: object) -> LocalSettings:
    return LocalSettings(
        model=ModelSettings(path=Path("/models/tiny"), name="tiny"),
        engines=(EngineSettings(name="sglang-0", url="http://127.0.0.1:31999"),),
        trainer=TrainerConfig(lora=LoraSettings(rank=8, target_modules=("q_proj", "v_proj"))),
        local=LocalConfig(**local),  # type: ignore[arg-type]
    )


def flag(argv: list[str], name: str) -> str | None:
    return argv[argv.index(name) + 1] if name in argv else None


@pytest.mark.parametrize(
    ("device", "local", "tokens", "running"),
    [
        ("cpu", {}, "24576", "24"),
        ("cuda", {}, None, None),
        ("cuda", {"engine_max_tokens": 9000, "engine_max_running": 7}, "9000", "7"),
    ],
)
def test_the_engine_takes_the_adapters_that_are_trained(
    monkeypatch: pytest.MonkeyPatch,
    device: str,
    local: dict[str, int],
    tokens: str | None,
    running: str | None,
) -> None:
    monkeypatch.setenv("NEXTSTATE_DEVICE", device)
    monkeypatch.setenv("NEXTSTATE_ENGINE_PYTHON", sys.executable)
    argv = list(processes.engine(settings(**local)).command())
    assert argv[0] == sys.executable
    assert flag(argv, "--port") == "31999"
    assert flag(argv, "--model-path") == "/models/tiny"
    assert flag(argv, "--served-model-name") == "tiny"
    assert flag(argv, "--max-lora-rank") == "8"
    modules = argv.index("--lora-target-modules")
    assert argv[modules + 1 : modules + 3] == ["q_proj", "v_proj"]
    assert flag(argv, "--max-total-tokens") == tokens
    assert flag(argv, "--max-running-requests") == running


def test_an_engine_that_is_not_installed_is_one_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEXTSTATE_CACHE", str(tmp_path))
    monkeypatch.delenv("NEXTSTATE_ENGINE_PYTHON", raising=False)
    with pytest.raises(StackError, match="the engine is not installed: run `nextstate setup`"):
        processes.engine(settings())


def test_a_component_reads_its_file_and_not_the_variables_that_led_to_it() -> None:
    spec = processes.worker("trainer", "train", settings(), Path("/run/settings.yaml"))
    assert list(spec.command())[1:] == ["-m", "gateway", "train"]
    assert spec.environment["NEXTSTATE_CONFIG"] == "/run/settings.yaml"
    hidden = ["DATABASE_URL", "NEXTSTATE_TRAINER__BATCH", "NEXTSTATE_ENGINES"]
    kept = ["NEXTSTATE_CACHE", "NEXTSTATE_DEVICE", "PATH"]
    assert [name for name in [*hidden, *kept] if spec.without(name)] == hidden


def test_a_port_is_found_or_refused() -> None:
    port = free_port("127.0.0.1", 0)
    assert free_port("127.0.0.1", port) == port
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        number = taken.getsockname()[1]
        with pytest.raises(StackError, match=f"cannot listen on 127.0.0.1:{number}: Address"):
            free_port("127.0.0.1", number)
