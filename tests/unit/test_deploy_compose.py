"""docker-compose.yml, by parsing: commands, settings, mounts, secrets and ports that are real."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from gateway.cli.commands import app
from gateway.cli.effective import problems
from gateway.config import load
from gateway.device import Device
from gateway.local.config import LocalSettings
from gateway.local.sglang import LoraLimits, launch_command
from tests.deployment import ROOT, compose, dockerfile
from tests.unit.test_deploy_image import locked

OWN = ("migrate", "gateway", "judge", "trainer-cpu", "trainer-gpu")


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    found: dict[str, Any] = compose(MODEL_DIR="/models/one")["services"]
    return found


def mounts(service: dict[str, Any]) -> dict[str, str]:
    """Sources by target."""
    return {one["target"]: one["source"] for one in service.get("volumes", [])}


@pytest.fixture
def deployed(monkeypatch: pytest.MonkeyPatch) -> LocalSettings:
    monkeypatch.setenv("NEXTSTATE_CONFIG", str(ROOT / "deploy" / "nextstate.yaml"))
    return load(LocalSettings)


def test_the_model_is_the_only_thing_that_has_to_be_said():
    with pytest.raises(KeyError, match="MODEL_DIR"):
        compose()
    assert compose(MODEL_DIR="/m", GATEWAY_REPLICAS="5")["services"]["gateway"]["deploy"] == {
        "replicas": 5
    }


@pytest.mark.parametrize("name", OWN)
def test_each_command_and_build_target_is_there(services: dict[str, Any], name: str):
    known = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    [command] = services[name]["command"]
    assert command in known
    target = services[name]["build"]["target"] if "build" in services[name] else None
    assert target in dockerfile()


@pytest.mark.parametrize("name", OWN)
def test_each_variable_is_a_setting(
    services: dict[str, Any], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for variable in list(os.environ):
        if variable.startswith("NEXTSTATE_") or variable == "DATABASE_URL":
            monkeypatch.delenv(variable)
    (tmp_path / "database_url").write_text("postgresql://u:p@h/n")
    (tmp_path / "admin_key").write_text("a-key-that-is-long-enough")
    for variable, value in services[name]["environment"].items():
        text = str(value).replace("/run/secrets", str(tmp_path))
        monkeypatch.setenv(variable, text.replace("/etc/", f"{ROOT}/deploy/"))
    found = problems()
    assert [one.setting for one in found] == ["model.path"]
    assert "/model is not a model directory" in found[0].problem
    settings = load(LocalSettings)
    assert settings.database_url == "postgresql://u:p@h/n"
    assert settings.gateway.replicas == services["gateway"]["deploy"]["replicas"]


def test_what_is_mounted_exists_and_what_is_named_is_declared(tmp_path: Path):
    document = compose(MODEL_DIR="/models/one")
    shutil.copy(ROOT / "deploy" / "make-secrets.sh", tmp_path)
    make = [str(tmp_path / "make-secrets.sh")]
    subprocess.run(make, check=True, capture_output=True)
    made = {path.name: path.read_text() for path in (tmp_path / "secrets").iterdir()}
    assert subprocess.run(make, check=True, capture_output=True).stdout == b""
    assert made == {path.name: path.read_text() for path in (tmp_path / "secrets").iterdir()}
    assert (tmp_path / "secrets").stat().st_mode & 0o777 == 0o700
    password = made["postgres_password"].strip()
    assert made["database_url"] == f"postgresql://nextstate:{password}@postgres/nextstate\n"
    assert len({*made.values()}) == 4

    assert {name: Path(one["file"]).name for name, one in document["secrets"].items()} == {
        name: name for name in made
    }
    names = {*document["services"]}
    for name, service in document["services"].items():
        assert {*service.get("secrets", [])} <= {*document["secrets"]}, name
        assert {*service["networks"]} <= {*document["networks"]}, name
        assert {*service.get("depends_on", [])} <= names, name
        for mount in service.get("volumes", []):
            if mount["type"] == "volume":
                assert mount["source"] in document["volumes"]
            elif mount["source"] != "/models/one":
                assert (ROOT / mount["source"]).exists(), mount["source"]


def test_no_password_stands_in_the_file_and_no_port_is_open_to_all(services: dict[str, Any]):
    for name, service in services.items():
        for variable, value in service.get("environment", {}).items():
            if re.search(r"PASSWORD|SECRET|TOKEN|KEY|URL", variable) and "HEALTH" not in variable:
                assert str(value).startswith("/run/secrets/"), f"{name}: {variable}"
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:"), name


def test_images_are_pinned_and_the_engine_is_the_locked_one(services: dict[str, Any]):
    images = {one["image"] for one in services.values() if "build" not in one}
    assert len(images) == 5
    assert all(re.search(r":v?\d+\.\d+", image) for image in images), images
    version = locked("engine-gpu.txt")["sglang"]
    assert services["sglang-gpu"]["image"] == f"lmsysorg/sglang:v{version}"


@pytest.mark.parametrize(
    ("name", "device", "limits"), [("sglang-cpu", "cpu", (24576, 24)), ("sglang-gpu", "cuda", ())]
)
def test_the_engine_is_started_as_the_stack_starts_it(
    services: dict[str, Any], name: str, device: Device, limits: tuple[int, ...]
):
    lora = LoraLimits()
    total, running = limits or (None, None)
    argv, environment = launch_command(
        "python3", "/model", 30000, device=device, served_name="nextstate", host="0.0.0.0",
        lora=lora, max_total_tokens=total, max_running=running,
    )  # fmt: skip
    given = [part for word in services[name]["command"] for part in word.split("=", 1)]
    wanted = argv if name == "sglang-gpu" else argv[3:]
    assert given == wanted
    if name == "sglang-cpu":
        lines = " ".join(dockerfile()["engine-cpu"].all("ENV"))
        for variable, value in environment.items():
            assert f"{variable}={'/opt/stubs' if variable == 'PYTHONPATH' else value}" in lines


def test_directories_and_ports_agree(services: dict[str, Any], deployed: LocalSettings):
    directory, spool = str(deployed.trainer.directory), str(deployed.database.spool)
    for name in ("trainer-cpu", "trainer-gpu", "sglang-cpu", "sglang-gpu"):
        assert mounts(services[name])[directory] == "policies"
        assert mounts(services[name])["/model"] == "/models/one"
    assert mounts(services["gateway"])[spool] == "spool"
    assert deployed.model.path == Path("/model")
    [engine] = deployed.engines
    assert engine.url == "http://sglang:30000"
    for name in ("sglang-cpu", "sglang-gpu"):
        assert services[name]["networks"] == {"inner": {"aliases": ["sglang"]}}

    health = services["judge"]["environment"]["HEALTH_URL"]
    assert health == f"http://127.0.0.1:{deployed.judge.metrics_port}/metrics"
    for target in ("trainer-cpu", "trainer-cuda"):
        [lines] = dockerfile()[target].all("ENV")
        assert f"HEALTH_URL=http://127.0.0.1:{deployed.trainer.metrics_port}/metrics" in lines
    [lines] = dockerfile()["app-base"].all("ENV")
    assert f"HEALTH_URL=http://127.0.0.1:{deployed.gateway.port}/healthz" in lines
    nginx = (ROOT / "deploy" / "nginx.conf").read_text()
    assert f"server gateway:{deployed.gateway.port} resolve;" in nginx
    assert services["proxy"]["ports"] == ["127.0.0.1:8100:8080"]


def test_prometheus_asks_every_part_where_it_answers(
    services: dict[str, Any], deployed: LocalSettings
):
    scraped = yaml.safe_load((ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text())
    ports = {}
    for job in scraped["scrape_configs"]:
        [found] = job["dns_sd_configs"]
        ports[found["names"][0]] = found["port"]
        assert ("authorization" in job) == (job["job_name"] == "gateway")
    assert ports == {
        "gateway": deployed.gateway.port,
        "judge": deployed.judge.metrics_port,
        "trainer": deployed.trainer.metrics_port,
        "sglang": 30000,
    }
    aliases = {
        alias
        for service in services.values()
        if isinstance(service["networks"], dict)
        for alias in service["networks"]["inner"]["aliases"]
    }
    assert {*ports} <= {*services} | aliases
    targets = {*mounts(services["prometheus"])}
    assert {*scraped["rule_files"]} <= targets
    provided = yaml.safe_load(
        (ROOT / "deploy/grafana/provisioning/dashboards/nextstate.yml").read_text()
    )
    [provider] = provided["providers"]
    assert any(one.startswith(provider["options"]["path"]) for one in mounts(services["grafana"]))


def test_one_profile_starts_one_engine_and_one_trainer(services: dict[str, Any]):
    for profile in ("cpu", "gpu"):
        named = {name for name, one in services.items() if profile in one.get("profiles", [])}
        assert named == {f"sglang-{profile}", f"trainer-{profile}"}
