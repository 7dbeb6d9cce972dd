"""The guides are true: what can be run is run as it stands, and the rest is held to the code."""

from __future__ import annotations

import json
import re
import shlex

import pytest
import typer

from gateway.cli.commands import app
from gateway.config import SECTIONS
from gateway.local.config import LocalSettings
from tests.deployment import compose
from tests.docs import AT_HAND, GUIDES, ROOT, Block, blocks
from tests.fixtures_docs import Ran, run_block

__all__ = ["run_block"]

LANGUAGES = ("sh", "python", "javascript", "console", "yaml", "json", "")
PAGES = [*GUIDES, ROOT / "README.md"]


RUN = [one for one in blocks("sh", "python", "javascript") if one.tag in AT_HAND]


@pytest.mark.parametrize("guide", sorted({one.guide for one in RUN}))
async def test_blocks_run_as_they_stand(guide: str, run_block: Ran) -> None:
    for block in RUN:
        if block.guide == guide:
            code, said = await run_block(block)
            assert code == 0, f"{block}: {said}"
            assert said.strip(), f"{block} says nothing"


@pytest.mark.parametrize("block", blocks("yaml"), ids=str)
def test_a_settings_block_holds_settings(block: Block) -> None:
    import yaml

    content = yaml.safe_load(block.text)
    assert {*content} <= {*SECTIONS}
    # Arguments win over whatever else this machine has set.
    settings = LocalSettings(**content)
    assert {*content} <= settings.model_fields_set


def test_every_block_is_of_a_kind_that_is_looked_at() -> None:
    assert {block.language for block in blocks()} <= {*LANGUAGES}
    for block in blocks("json"):
        json.loads(block.text)
    for block in blocks("python"):
        compile(block.text, str(block), "exec")


def commands(text: str) -> list[list[str]]:
    """Each call of `nextstate` in a text, as words."""
    calls = re.findall(r"(?:^|[`( ]|/bin/)nextstate ([a-z][\w-]*[^`\n|>;)]*)", text)
    return [shlex.split(call, comments=True) for call in calls]


def wrong(words: list[str]) -> str | None:
    """What the command line would not take of these words."""
    command = typer.main.get_command(app)
    while words and hasattr(command, "commands"):
        if words[0] not in command.commands:
            return f"no command {words[0]}"
        command, words = command.commands[words[0]], words[1:]
    known = {name for one in command.params for name in (*one.opts, *one.secondary_opts)}
    options = [word.split("=")[0] for word in words if word.startswith("-")]
    unknown = [option for option in options if option not in known | {"--help"}]
    return f"no option {', '.join(unknown)} of {command.name}" if unknown else None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_and_options_that_are_named_exist(page) -> None:
    inside = re.findall(r"^```.*?^```|`[^`\n]+`", page.read_text(), re.MULTILINE | re.DOTALL)
    found = [words for part in inside for words in commands(part)]
    assert [why for words in found if (why := wrong(words))] == []


def test_commands_are_found_and_wrong_ones_noticed() -> None:
    assert commands("nextstate keys create NAME # one\n") == [["keys", "create", "NAME"]]
    assert commands("see `nextstate logs -f`") == [["logs", "-f"]]
    assert wrong(["keys", "create", "x", "--role", "admin"]) is None
    assert wrong(["keys", "make"]) == "no command make"
    assert wrong(["status", "--jsn"]) == "no option --jsn of status"


def test_services_of_compose_that_are_named_exist() -> None:
    services = compose(MODEL_DIR="/m")["services"]
    for block in blocks("console"):
        for name in re.findall(r"docker compose (?:exec|run --rm) (\S+)", block.text):
            assert name in services
        for profile in re.findall(r"--profile (\S+)", block.text):
            assert any(profile in one.get("profiles", []) for one in services.values())


def test_settings_that_are_named_exist() -> None:
    """`section.name` in the text of a guide is a setting, or a part of one."""
    for guide in GUIDES:
        text = re.sub(r"^```.*?^```", "", guide.read_text(), flags=re.MULTILINE | re.DOTALL)
        for section, rest in re.findall(rf"`({'|'.join(SECTIONS)})\.([a-z_.]+)[`:]", text):
            kind = LocalSettings.model_fields[section].annotation
            for name in rest.split("."):
                fields = getattr(kind, "model_fields", None)
                if fields is None:
                    break
                assert name in fields, f"{guide.name}: {section}.{rest}"
                kind = fields[name].annotation


def test_links_between_pages_lead_somewhere() -> None:
    for page in GUIDES:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).resolve().exists(), f"{page.name}: {target}"
