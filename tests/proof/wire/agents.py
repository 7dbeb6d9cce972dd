"""Command-line agents: how each is installed, told where its model is, and asked without a user."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.clients import npm_client


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """`call` is the tool that runs a command in a shell, with the name of its argument.

    `command` makes the command line of a question, or of one that goes `on` with the last session.
    `prepare` puts into a home what the agent would fetch from elsewhere.
    """

    package: str
    binary: str
    call: tuple[str, str]
    extra: dict[str, object]
    command: Callable[[str, str, bool], list[str]]
    environ: Callable[[str, str], dict[str, str]]
    prepare: Callable[[Path], None] = lambda home: None

    def installed(self) -> Path:
        [binary] = npm_client(self.package).glob(self.binary)
        return binary


def clean(home: Path) -> dict[str, str]:
    """An environment in which nothing of the machine's own user is seen."""
    return {"PATH": os.environ["PATH"], "HOME": str(home), "LANG": "C.UTF-8"}


def _codex(url: str, question: str, on: bool) -> list[str]:
    provider = (
        f'{{name = "local", base_url = "{url}/v1", env_key = "OPENAI_API_KEY", '
        'wire_api = "responses"}'
    )
    settings = [
        'model_provider="local"',
        f"model_providers.local={provider}",
        "analytics.enabled=false",
        "check_for_update_on_startup=false",
        "features.plugins=false",
        "features.remote_plugin=false",
    ]
    flags = [part for setting in settings for part in ("-c", setting)]
    shared = ["--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
    again = ["resume", "--last"] if on else []
    return ["exec", *again, *flags, "-m", "tiny", *shared, question]


def _claude(url: str, question: str, on: bool) -> list[str]:
    again = ["--continue"] if on else []
    return ["-p", question, *again, "--allowedTools", "Bash(echo:*)"]


def _opencode(url: str, question: str, on: bool) -> list[str]:
    return ["run", "--auto", *(["--continue"] if on else []), "-m", "local/tiny", question]


def _opencode_environ(package: str) -> Callable[[str, str], dict[str, str]]:
    def environ(url: str, key: str) -> dict[str, str]:
        model = {"name": "tiny", "limit": {"context": 400_000, "output": 8_000}}
        config = {
            "autoupdate": False,
            "share": "disabled",
            "small_model": "local/small",
            "provider": {
                "local": {
                    "npm": package,
                    "options": {"baseURL": f"{url}/v1", "apiKey": key},
                    "models": {"tiny": model, "small": model},
                }
            },
        }
        return {
            "OPENCODE_CONFIG_CONTENT": json.dumps(config),
            "OPENCODE_DISABLE_AUTOUPDATE": "1",
            "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
            "OPENCODE_DISABLE_MODELS_FETCH": "1",
        }

    return environ


def _no_plugins(home: Path) -> None:
    """The library for plugins, as if it were installed: nothing here is a plugin."""
    directory = home / ".config" / "opencode"
    (directory / "node_modules").mkdir(parents=True)
    wanted = {"dependencies": {"@opencode-ai/plugin": "*"}}
    (directory / "package.json").write_text(json.dumps(wanted))
    (directory / "package-lock.json").write_text(json.dumps({"packages": {"": wanted}}))


def _opencode_as(package: str) -> Agent:
    return Agent(
        package="opencode",
        binary="opencode-linux-x64-baseline/bin/opencode",
        call=("bash", "command"),
        extra={"description": "Says a word."},
        command=_opencode,
        environ=_opencode_environ(package),
        prepare=_no_plugins,
    )


AGENTS = {
    "claude-code": Agent(
        package="claude-code",
        binary="@anthropic-ai/claude-code-*-*/claude",
        call=("Bash", "command"),
        extra={},
        command=_claude,
        environ=lambda url, key: {
            "ANTHROPIC_BASE_URL": url,
            "ANTHROPIC_API_KEY": key,
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        },
    ),
    "codex": Agent(
        package="codex",
        binary="@openai/codex-*-*/vendor/*/bin/codex",
        call=("exec_command", "cmd"),
        extra={},
        command=_codex,
        environ=lambda url, key: {"OPENAI_API_KEY": key},
    ),
    "opencode-chat": _opencode_as("@ai-sdk/openai-compatible"),
    "opencode-responses": _opencode_as("@ai-sdk/openai"),
}
