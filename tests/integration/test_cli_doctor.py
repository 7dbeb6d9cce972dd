"""`nextstate doctor` against a real database, a running gateway and engines that differ."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from aiohttp import web
from typer.testing import CliRunner

from gateway.cli import parts
from gateway.cli.commands import app
from gateway.local import state
from gateway.local.state import StackState
from tests.fakes import FakeSglang
from tests.fixtures_engine import free_port
from tests.fixtures_gateway import Gateway
from tests.running import make_keys

Configure = Callable[..., None]
States = dict[str, list[tuple[str, str, str]]]


@pytest.fixture
def configure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Configure:
    """Write the settings file of an otherwise empty environment."""
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name == "DATABASE_URL" or name.upper().startswith("NEXTSTATE_"):
            monkeypatch.delenv(name)

    def write(**sections: Any) -> None:
        sections.setdefault("gateway", {"port": free_port()})
        (tmp_path / "nextstate.yaml").write_text(yaml.safe_dump(sections))

    return write


async def examined(*, code: int) -> States:
    """State, finding and remedy of each thing; the exit code is checked."""
    result = await asyncio.to_thread(CliRunner().invoke, app, ["doctor", "--json"])
    assert result.exit_code == code, result.output
    answer = json.loads(result.stdout)
    found: States = {}
    for one in answer["findings"]:
        found.setdefault(one["what"], []).append((one["state"], one["said"], one["mend"]))
    assert (answer["status"] == "wrong") == (code == 1)
    return found


def values(database_url: str, model: Path, *engines: FakeSglang) -> dict[str, Any]:
    return {
        "database": {"url": database_url},
        "model": {"path": str(model), "name": "tiny"},
        "engines": [{"name": f"e{n}", "url": one.url} for n, one in enumerate(engines)],
    }


async def test_all_is_well(
    configure: Configure, gateway: Gateway, database_url: str, tiny_model: Path
) -> None:
    llm = {"base_url": f"{gateway.url}/v1", "model": "tiny", "api_key": gateway.keys.agent}
    configure(**values(database_url, tiny_model, gateway.engine), judge={"llm": llm})
    found = await examined(code=0)
    assert {state for some in found.values() for state, _, _ in some} == {"ok"}
    assert {*found} == {
        "settings", "database", "schema", "clock", "model", "engine e0", "judge", "GPU", "disk",
        "port",
    }  # fmt: skip
    size = json.loads((tiny_model / "config.json").read_text())["vocab_size"]
    assert f"qwen3, {size} ids" in found["model"][0][1]
    screen = await asyncio.to_thread(CliRunner().invoke, app, ["doctor"])
    assert screen.exit_code == 0
    assert "takes adapters" in screen.stdout


async def test_a_database_that_is_not_migrated_and_one_that_is_away(
    configure: Configure, empty_database_url: str
) -> None:
    configure(database={"url": empty_database_url})
    state, said, mend = (await examined(code=1))["schema"][0]
    assert (state, mend) == ("wrong", "run `nextstate migrate`")
    assert "no tables yet" in said
    configure(database={"url": f"postgresql://u:p4ss@127.0.0.1:{free_port()}/n"})
    state, said, mend = (await examined(code=1))["database"][0]
    assert state == "wrong"
    assert "cannot be reached" in said
    assert "p4ss" not in said + mend


async def test_a_database_without_keys_is_a_warning(
    configure: Configure, database_url: str
) -> None:
    configure(database={"url": database_url})
    assert (await examined(code=0))["keys"][0][0] == "warning"
    await make_keys(database_url, "tiny")
    assert "keys" not in await examined(code=0)


class WithoutLora(FakeSglang):
    """As SGLang answers that was started without `--enable-lora`."""

    async def _loads(self, _: web.Request) -> web.Response:
        return web.json_response({"loads": [{"num_running_reqs": 0, "num_waiting_reqs": 0}]})


async def test_engines_that_cannot_serve_what_is_trained(
    configure: Configure, database_url: str, tiny_model: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    shutil.copytree(tiny_model, other)
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**config, "vocab_size": 99_999}))
    async with (
        WithoutLora(model_path=tiny_model) as plain,
        FakeSglang(model_path=other, name="else") as foreign,
        FakeSglang(model_path=tiny_model) as gone,
    ):
        gone.context_length //= 2
        configure(**values(database_url, tiny_model, plain, foreign, gone))
        found = await examined(code=1)
        await gone.stop()
        later = await examined(code=1)
    assert [(state, "--enable-lora" in mend) for state, _, mend in found["engine e0"]] == [
        ("warning", True)
    ]
    assert [(state, said) for state, said, _ in found["engine e1"]] == [
        ("warning", "it calls its model 'else'"),
        ("wrong", f"its model has 99999 ids and that of model.path {config['vocab_size']}"),
    ]
    [(state, _, mend)] = found["engine e2"]
    assert (state, mend) == ("warning", f"set model.context_length to {gone.context_length}")
    assert later["engine e2"][0][0] == "wrong"


async def test_a_judge_whose_key_is_refused(
    configure: Configure, gateway: Gateway, database_url: str, tiny_model: Path
) -> None:
    llm = {"base_url": f"{gateway.url}/v1", "model": "tiny", "api_key": "sk-wrong"}
    configure(**values(database_url, tiny_model, gateway.engine), judge={"llm": llm})
    state, said, _ = (await examined(code=1))["judge"][0]
    assert state == "wrong"
    assert "refuses the key (401)" in said


@pytest.mark.parametrize(
    ("ahead_s", "state", "code"), [(0.0, "ok", 0), (20.0, "warning", 0), (-90.0, "wrong", 1)]
)
async def test_clocks_that_differ(
    configure: Configure,
    database_url: str,
    monkeypatch: pytest.MonkeyPatch,
    *,
    ahead_s: float,
    state: str,
    code: int,
) -> None:
    clock = SimpleNamespace(time=lambda: time.time() + ahead_s)
    monkeypatch.setattr(parts, "time", clock)
    configure(database={"url": database_url})
    [(seen, said, _)] = (await examined(code=code))["clock"]
    assert seen == state
    if ahead_s:
        assert said.endswith(f"{'ahead of' if ahead_s > 0 else 'behind'} the database")


@pytest.mark.parametrize(
    ("sections", "what", "mend"),
    [
        ({"model": {"path": "empty"}, "engines": [{}]}, "model", "config.json"),
        ({"engines": [{}]}, "model", "set model.path"),
    ],
)
async def test_a_model_that_cannot_be_read(
    configure: Configure, tmp_path: Path, sections: Mapping[str, Any], what: str, mend: str
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "config.json").write_text("{}")
    configure(**sections)
    [found] = (await examined(code=1))[what]
    assert found[0] == "wrong"
    assert mend in found[2]


async def test_what_is_wrong_with_this_machine(
    configure: Configure, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("NEXTSTATE_DEVICE", "cuda")
    monkeypatch.setenv("PATH", str(tmp_path))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        configure(
            gateway={"port": port},
            database={"url": database_url, "spool": str(tmp_path / "file" / "spool")},
            judge={"metrics_host": "192.0.2.1", "metrics_port": free_port()},
        )
        found = await examined(code=1)
    assert [state for state, _, _ in found["GPU"]] == ["wrong"]
    assert [state for state, _, _ in found["disk"]] == ["wrong", "ok"]
    assert [state for state, _, _ in found["port"]] == ["warning", "wrong"]


async def test_wrong_settings_are_all_that_is_told(configure: Configure) -> None:
    configure(gateway={"port": "many"}, log={"level": "loud"})
    found = await examined(code=1)
    assert {*found} == {"settings"}
    assert len(found["settings"]) == 2


async def test_a_stack_that_runs_here_is_asked_by_its_own_settings(
    configure: Configure, database_url: str, tiny_model: Path, tmp_path: Path
) -> None:
    """They name what it chose itself: database, model, engine and its port."""
    configure()
    home = tmp_path / ".nextstate"
    with socket.socket() as taken, state.claimed(home):
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        async with FakeSglang(model_path=tiny_model) as engine:
            chosen = values(database_url, tiny_model, engine)
            chosen["gateway"] = {"port": taken.getsockname()[1]}
            (home / "settings.yaml").write_text(yaml.safe_dump(chosen))
            state.write(home, StackState(pid=os.getpid(), phase="ready", started_at=0))
            found = await examined(code=0)
    assert found["engine e0"][0][0] == "ok"
    [(seen, said, _)] = found["port"]
    assert (seen, said.endswith("in use by the stack")) == ("ok", True)
    # Without the stack the settings are those of the file again, which names no database.
    later = await examined(code=1)
    assert later["database"][0][0] == "wrong"
    assert "engine e0" not in later
