from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

from gateway.config import load
from gateway.errors import ConfigError
from gateway.records import FeedbackRecord, FinishReason
from judge.config import JudgeConfig, JudgeSettings
from judge.evaluate import evaluate
from judge.lineup import lined_up
from judge.verdicts import Evidence

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "judge_plugin"

EVIDENCE = Evidence(
    request=({"role": "user", "content": "Sum 1 and 2 as JSON."},),
    reply={"role": "assistant", "content": '{"sum": 3}'},
    next_state=({"role": "user", "content": "And 3 and 4?"},),
    feedback=(),
    finish_reason=FinishReason.STOP,
)

LLM = {"base_url": "http://127.0.0.1:1/v1", "model": "m"}


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example as an installer leaves it: its module and its entry points."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    info = tmp_path / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Name: {project['name']}\nVersion: {project['version']}\n")
    lines = [
        line
        for group, points in project["entry-points"].items()
        for line in (f"[{group}]", *(f"{name} = {value}" for name, value in points.items()),
                     "broken = json_judge:nothing", "useless = builtins:dict")
    ]  # fmt: skip
    (info / "entry_points.txt").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.syspath_prepend(str(EXAMPLE))
    monkeypatch.delitem(sys.modules, "json_judge", raising=False)


async def names(config: JudgeConfig) -> list[str]:
    async with lined_up(config) as lineup:
        return [judge.name for judge in lineup.judges]


async def test_without_an_endpoint_only_the_rules_judge() -> None:
    async with lined_up(JudgeConfig()) as lineup:
        assert [judge.name for judge in lineup.judges] == ["rules"]
        assert (lineup.hinter, lineup.budget) == (None, None)


def test_without_an_endpoint_its_client_is_not_loaded() -> None:
    program = "import sys, judge.worker; print('openai' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, cwd=ROOT
    )
    assert done.stdout == "False\n"


async def test_the_rules_come_before_the_llm_unless_said_otherwise() -> None:
    assert await names(JudgeConfig(llm=LLM)) == ["rules", "llm:m"]
    # What stands first is feedback alone.
    turned = JudgeConfig(llm=LLM, line=("llm", "rules"))
    assert await names(turned) == ["rules", "llm:m", "rules"]
    deaf = {"rule_weights": {"feedback": 0}}
    assert await names(JudgeConfig(llm=LLM, line=("llm",), **deaf)) == ["llm:m"]
    async with lined_up(JudgeConfig(llm={**LLM, "hints": "any"})) as lineup:
        assert lineup.hinter is not None
        assert lineup.hinter.agreement == "any"
        assert lineup.budget is lineup.hinter.endpoint.budget


@pytest.mark.usefixtures("installed")
async def test_explicit_feedback_comes_before_whoever_is_first_in_line() -> None:
    nobody = UUID(int=0)
    word = FeedbackRecord(id=nobody, tenant_id=nobody, turn_id=nobody, score=-1.0)
    config = JudgeConfig(line=("json", "rules"), plugins={"json": {"keys": ["sum"]}})
    async with lined_up(config) as lineup:
        said = await evaluate(lineup.judges, replace(EVIDENCE, feedback=(word,)))
        found = await evaluate(lineup.judges, EVIDENCE)
    assert (said.judge, said.rule, said.score) == ("rules", "feedback", -1.0)
    assert (found.judge, found.score) == ("json", 1.0)


@pytest.mark.usefixtures("installed")
async def test_a_judge_from_another_package_stands_where_it_is_named() -> None:
    config = JudgeConfig(line=("rules", "json"), plugins={"json": {"keys": ["sum"]}})
    async with lined_up(config) as lineup:
        good = await evaluate(lineup.judges, EVIDENCE)
        bad = await evaluate(
            lineup.judges, replace(EVIDENCE, reply={"role": "assistant", "content": "{}"})
        )
        told = ({"role": "user", "content": "Please make it shorter."},)
        ruled = await evaluate(lineup.judges, replace(EVIDENCE, next_state=told))
    assert (good.judge, good.score) == ("json", 1.0)
    assert (bad.judge, bad.score, bad.hint) == ("json", -1.0, "Give the key sum.")
    assert (ruled.judge, ruled.score) == ("rules", -1.0)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("config", "message"),
    [
        (JudgeConfig(line=("llm",)), "no section judge.llm"),
        (JudgeConfig(line=("rules", "oracle")), "no judge named oracle; there are broken, json, "),
        (JudgeConfig(line=("broken",)), "judge broken: AttributeError"),
        (JudgeConfig(line=("useless",)), "judge useless is not a judge"),
        (JudgeConfig(line=("json",)), "judge json: ValueError: keys"),
        (JudgeConfig(plugins={"json": {}}), "plugins names json, which judge.line does not"),
        (JudgeConfig(settling_rules=("no",)), "no rule named no"),
    ],
)
async def test_what_is_wrong_with_a_line_is_said(config: JudgeConfig, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        await names(config)


def test_an_endpoint_is_configured_by_file_or_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEXTSTATE_JUDGE__LLM__BASE_URL", "https://example.com/v1")
    monkeypatch.setenv("NEXTSTATE_JUDGE__LLM__MODEL", "big")
    monkeypatch.setenv("NEXTSTATE_JUDGE__LLM__API_KEY", "sk-secret")
    config = load(JudgeSettings).judge
    assert config.llm is not None
    assert (config.llm.model, config.llm.votes, config.llm.temperature) == ("big", 3, 0.6)
    assert "sk-secret" not in repr(config)
    # Thirty seconds of its own, and twenty for the votes; as many again for hints.
    assert config.attempt_timeout_s == 50
    assert JudgeConfig(llm={**LLM, "hints": "any"}).attempt_timeout_s == 70
    assert JudgeConfig().attempt_timeout_s == 30
    with pytest.raises(ConfigError, match=r"judge\.llm\.base_url"):
        load(JudgeSettings, judge={"llm": {"base_url": "ftp://x", "model": "m"}})
    monkeypatch.delenv("NEXTSTATE_JUDGE__LLM__MODEL")
    with pytest.raises(ConfigError, match=r"judge\.llm: .*base_url needs a model"):
        load(JudgeSettings, judge={"llm": {"base_url": "http://x/v1"}})


async def test_one_setting_asks_the_policys_own_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    def asked() -> tuple[str | None, str | None, str | None]:
        llm = load(JudgeSettings).judging.llm
        assert llm is not None
        return llm.base_url, llm.model, llm.api_key.get_secret_value() if llm.api_key else None

    assert load(JudgeSettings).judging.llm is None
    monkeypatch.setenv("NEXTSTATE_JUDGE__LLM", "{}")
    assert asked() == ("http://127.0.0.1:30000/v1", "nextstate", None)
    monkeypatch.setenv("NEXTSTATE_MODEL__NAME", "qwen3-8b")
    engines = [{"url": "http://a:1/", "api_key": "k"}, {"name": "second", "url": "http://b:2"}]
    monkeypatch.setenv("NEXTSTATE_ENGINES", json.dumps(engines))
    assert asked() == ("http://a:1/v1", "qwen3-8b", "k")
    assert await names(load(JudgeSettings).judging) == ["rules", "llm:qwen3-8b"]
    text = [{"kind": "openai", "url": "https://c/v1", "model": "big"}]
    monkeypatch.setenv("NEXTSTATE_ENGINES", json.dumps(text))
    assert asked() == ("https://c/v1", "big", None)
    # What is said of the endpoint stands.
    elsewhere = {"base_url": "http://d/v1", "model": "m"}
    monkeypatch.setenv("NEXTSTATE_JUDGE__LLM", json.dumps(elsewhere))
    assert asked() == ("http://d/v1", "m", None)


async def test_nobody_is_asked_at_no_address() -> None:
    with pytest.raises(ConfigError, match="no engine to ask"):
        await names(JudgeConfig(llm={}))
    with pytest.raises(ConfigError, match="an endpoint of its own"):
        load(JudgeSettings, judge={"audit": {"llm": {}}})
