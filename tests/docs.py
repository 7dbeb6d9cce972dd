"""The blocks of the guides, by language, and how each is run."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.clients import client_python, node, npm_client

ROOT = Path(__file__).resolve().parents[1]
GUIDES = sorted((ROOT / "docs").glob("*.md"))

#: Clients whose environments the other tests use too; the rest is for `make proof-docs`.
AT_HAND = frozenset({"", "anthropic"})

_BLOCK = re.compile(r"^```(\w*)([^\n]*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Block:
    """`tag` is what stands after the language: which client a program needs."""

    guide: str
    line: int
    language: str
    tag: str
    text: str

    def __str__(self) -> str:
        return f"{self.guide}:{self.line}"

    def command(self) -> list[str]:
        """How to run it. Environments of clients are built the first time."""
        if self.language == "sh":
            return ["bash", "-euo", "pipefail", "-c", self.text]
        if self.language == "javascript":
            return [str(node()), "--input-type=module", "--eval", self.text]
        python = client_python(self.tag) if self.tag else Path(sys.executable)
        return [str(python), "-W", "ignore", "-c", self.text]

    def directory(self, work: Path) -> Path:
        """Where it runs; Node looks for packages from there."""
        if self.language == "javascript":
            return npm_client("openai-node").parent
        return work


def blocks(*languages: str) -> list[Block]:
    found = []
    for guide in GUIDES:
        text = guide.read_text()
        for match in _BLOCK.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            language, tag, body = match.groups()
            found.append(Block(guide.name, line, language, tag.strip(), body))
    return [block for block in found if not languages or block.language in languages]


def environ(url: str, agent: str, admin: str, **more: str) -> dict[str, str]:
    """The variables of all blocks, and nothing of the machine's own user."""
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {
        "PATH": programs,
        "HOME": os.environ["HOME"],
        "LANG": "C.UTF-8",
        "GATEWAY_URL": url,
        "OPENAI_BASE_URL": f"{url}/v1",
        "OPENAI_API_KEY": agent,
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": agent,
        "ADMIN_KEY": admin,
        "HF_HUB_OFFLINE": "1",
        "LANGSMITH_TRACING": "false",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        **more,
    }
