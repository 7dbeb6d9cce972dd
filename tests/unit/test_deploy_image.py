"""The Dockerfile, by parsing: stages, what they copy, who runs, and what the small one lacks."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from tests.deployment import ROOT, dockerfile, lineage

TARGETS = ("app", "trainer-cpu", "trainer-cuda", "engine-cpu")


def locked(name: str = "app.txt") -> dict[str, str]:
    lines = (ROOT / "locks" / name).read_text().split()
    return dict(line.split("==") for line in lines)


def left_out() -> set[str]:
    [command] = [run for run in dockerfile()["build"].all("RUN") if "grep -vE" in run]
    [names] = re.findall(r"'\^\(([^)]*)\)=='", command)
    return set(names.split("|"))


def test_every_stage_stands_on_one_before_it_or_on_a_pinned_image():
    earlier: set[str] = set()
    for name, stage in dockerfile().items():
        if stage.parent not in earlier:
            assert re.fullmatch(r"python:3\.11\.\d+-slim-\w+", stage.parent), stage.parent
        for copy in stage.all("COPY"):
            if found := re.match(r"--from=(\S+)", copy):
                assert found[1] in earlier
        earlier.add(name)
    assert earlier >= {*TARGETS}


def test_what_is_copied_is_there_and_let_through():
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    let_through = {line[1:] for line in ignored if line.startswith("!")}
    assert "*" in ignored
    sources = {
        source
        for stage in dockerfile().values()
        for copy in stage.all("COPY")
        if not copy.startswith("--from")
        for source in copy.split()[:-1]
    }
    for source in sources:
        assert (ROOT / source).exists(), source
        assert any(source == one or source.startswith(f"{one}/") for one in let_through), source
    for one in let_through:
        assert any(source == one or source.startswith(f"{one}/") for source in sources), one


@pytest.mark.parametrize("target", TARGETS)
def test_an_image_runs_as_nobody_in_particular_and_tells_its_health(target: str):
    stages = list(lineage(target))
    users = [user for stage in stages for user in stage.all("USER")]
    assert users[0] == "nextstate"
    assert any(stage.all("HEALTHCHECK") for stage in stages)
    [entry] = next(stage.all("ENTRYPOINT") for stage in stages if stage.all("ENTRYPOINT"))
    assert entry in ('["nextstate"]', '["python", "-m", "sglang.launch_server"]')
    # What is installed with cannot be reached from what runs.
    assert not any(name.startswith("build") for name in (stage.name for stage in stages))


def test_no_address_but_this_machines_is_named():
    for name in ("Dockerfile", "docker-compose.yml"):
        hosts = re.findall(r"https?://([\w.-]+)", (ROOT / name).read_text())
        assert {*hosts} <= {"127.0.0.1"}, name


def test_what_the_small_image_lacks_is_locked_and_not_needed_to_serve(tiny_model: Path):
    """Everything but the trainer's and the stack's own parts is imported without it."""
    assert left_out() < {*locked()}
    assert {"torch", "transformers", "megatron-core"} <= left_out()
    names = {name.lower().replace("_", "-") for name in left_out()}
    modules = sorted(
        module
        for module, distributions in packages_distributions().items()
        if {one.lower().replace("_", "-") for one in distributions} <= names
    )
    assert "torch" in modules
    program = f"""
import importlib, importlib.abc, pkgutil, sys
from pathlib import Path

class Lacking(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {modules!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Lacking())
import alembic.command, gateway, judge, migrations, trainer.config
apart = ("gateway.demo", "gateway.local.convert", "gateway.local.stubs")
for package in (gateway, judge):
    for found in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not found.name.startswith(apart) and not found.name.endswith("__main__"):
            importlib.import_module(found.name)
from gateway.errors import ConfigError
from gateway.tokens.choice import make_renderer
from gateway.tokens.tokenizer import Tokenizer
tokenizer = Tokenizer.load(Path({str(tiny_model)!r}))
messages = ({{"role": "user", "content": "x"}},)
print(len(make_renderer("template", tokenizer).render(messages, (), {{}})) > 3)
try:
    make_renderer("qwen3", tokenizer)
except ConfigError as error:
    # The family's own renderer was loaded, and looked at this tokenizer.
    print("Special token" in error.message)
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        timeout=120,
    )
    assert (done.stdout, done.returncode) == ("True\nTrue\n", 0), done.stderr


def test_files_beside_the_code_are_installed_with_it():
    """What an installed package is to hold, since the images install no checkout."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    data = project["tool"]["setuptools"]["package-data"]
    globs = [
        f"{package.replace('.', '/')}/{glob}" for package, some in data.items() for glob in some
    ]
    others = [
        path.relative_to(ROOT).as_posix()
        for package in ("gateway", "judge", "trainer")
        for path in (ROOT / package).rglob("*")
        if path.is_file() and path.suffix not in {".py", ".pyc"}
    ]
    assert [name for name in others if not any(fnmatch(name, glob) for glob in globs)] == []


def test_the_engine_is_the_locked_one():
    assert locked("engine-cpu.txt")["sglang"] == locked("engine-gpu.txt")["sglang"]
