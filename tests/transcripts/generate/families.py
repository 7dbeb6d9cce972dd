"""The clients: how each names a session, writes history down, calls agents, titles and compacts."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from tests.transcripts.generate.stage import Stage, Talk
from tests.transcripts.generate.wire import Entry, Hand, Replied, Said

PYTHON = "OpenAI/Python 3.57.0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """`delegate` is the tool that calls an agent, and the argument that says what to do."""

    name: str
    hand: Hand
    user_agent: str
    system: str = "You help with the harbour project."
    tools: tuple[str, ...] = ("read_file", "run_tests")
    naming: str = ""
    stainless: bool = True
    delegate: tuple[str, str] = ("task", "prompt")
    title: str = "quote"
    compaction: str = "app"
    says_user: bool = False

    @property
    def toolless(self) -> tuple[str, ...]:
        """The tools of a conversation without any: coding agents always have theirs."""
        return self.tools if self.naming else ()

    def open(self, stage: Stage, **more: Any) -> Talk:
        """A new conversation, with whatever names this client gives it."""
        headers = {"user-agent": self.user_agent, "content-type": "application/json"}
        if self.stainless:
            headers["x-stainless-retry-count"] = "0"
        extra: dict[str, Any] = {}
        prelude: tuple[Entry, ...] = ()
        name = stage.uuid()
        if self.naming == "codex":
            headers |= {"session-id": name, "thread-id": name, "x-codex-window-id": f"{name}:0"}
            headers["x-codex-turn-metadata"] = _metadata("turn")
            extra = {"prompt_cache_key": name, "store": False, "stream": True}
        elif self.naming == "claude":
            headers["x-claude-code-session-id"] = name
            user = {"device_id": "d", "account_uuid": "", "session_id": name}
            extra = {"metadata": {"user_id": json.dumps(user)}, "stream": True}
        elif self.naming == "opencode":
            name = f"ses_{stage.hex(24)}"
            headers |= {"x-session-id": name, "x-session-affinity": name}
            extra = {"stream": True, "max_tokens": 32000}
        elif self.naming == "qwen":
            prelude = (
                Said(f"Setting: {stage.words(6)}"),
                Replied("Got it. Thanks for the context!"),
            )
            extra = {"stream": True}
        elif self.naming == "openclaw":
            more["signature"] = (
                f"\n\nRuntime: agent=main | host=h | sessionId={name} | model=policy"
            )
        elif self.says_user:
            extra = {"user": stage.words(2)}
        fields: dict[str, Any] = {
            "system": self.system,
            "tools": self.tools,
            "headers": headers,
            "extra": extra,
            "prelude": prelude,
            **more,
        }
        return Talk(stage, self.hand, **fields)

    def agent(self, stage: Stage, caller: Talk) -> Talk:
        """The conversation of an agent that `caller` has called."""
        talk = self.open(stage, origin=caller.label, kind="side", tools=self.tools[:1])
        talk.system = f"You look for {stage.words(2)}."
        own = talk.headers
        if self.naming == "codex":
            root = caller.headers["session-id"]
            own |= {"session-id": root, "x-openai-subagent": "collab_spawn"}
            own["x-codex-parent-thread-id"] = caller.headers["thread-id"]
        elif self.naming == "claude":
            own["x-claude-code-session-id"] = caller.headers["x-claude-code-session-id"]
            own["x-claude-code-agent-id"] = stage.hex(6)
            talk.system = f"cc_is_subagent=true; {talk.system}"
        elif self.naming == "opencode":
            own["x-parent-session-id"] = caller.headers["x-session-id"]
        elif self.naming == "openclaw":
            talk.opening = ""
        return talk


def _metadata(kind: str) -> str:
    return json.dumps({"turn_id": "t1", "request_kind": kind})


FAMILIES = (
    Family(
        name="codex", hand=Hand(dialect="responses", keeps_reasoning=True), naming="codex",
        user_agent="codex_cli_rs/0.171.0", stainless=False, delegate=("spawn_agent", "message"),
        title="", compaction="codex",
    ),
    Family(
        name="claude-code", hand=Hand(dialect="messages", cache_marks=True), naming="claude",
        user_agent="claude-cli/2.1.197 (external, cli)", delegate=("Task", "prompt"),
        title="claude", compaction="claude",
    ),
    Family(
        name="opencode", hand=Hand(arguments="compact", empty="text", keeps_reasoning=True),
        naming="opencode", user_agent="opencode/1.18.33 ai-sdk", stainless=False, title="opencode",
        compaction="opencode",
    ),
    Family(
        name="openclaw",
        hand=Hand(arguments="compact", strip_ids=True,
                  remark="<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>> state"),
        naming="openclaw", user_agent="OpenAI/JS 7.15.0", delegate=("sessions_spawn_agent", "task"),
        title="lone", compaction="app",
    ),
    Family(
        name="qwen-code", hand=Hand(arguments="compact", parts=True, keeps_reasoning=True),
        naming="qwen", user_agent="QwenCode/0.15.10 (linux; x64)", delegate=("agent", "prompt"),
        title="", compaction="qwen",
    ),
    Family(
        name="pi", hand=Hand(arguments="compact", system_role="developer", keeps_reasoning=True),
        user_agent="OpenAI/JS 6.26.0", delegate=("subagent", "task"), title="", compaction="pi",
    ),
    Family(
        name="openai-python", hand=Hand(), user_agent=PYTHON, says_user=True, title="quote",
        delegate=("ask_expert", "question"),
    ),
    Family(
        name="openai-node", hand=Hand(arguments="compact"), user_agent="OpenAI/JS 6.49.0",
        delegate=("research_agent", "query"),
    ),
    Family(
        name="anthropic-python", hand=Hand(dialect="messages"),
        user_agent="Anthropic/Python 2.14.0", delegate=("delegate", "task"),
    ),
    Family(
        name="openai-agents", hand=Hand(dialect="responses", keeps_reasoning=True),
        user_agent="Agents/Python 0.24.0", delegate=("ask_researcher", "input"), title="lone",
    ),
    Family(
        name="langgraph", hand=Hand(arguments="spaced", empty="text"), user_agent=PYTHON,
        delegate=("task", "description"), compaction="langgraph",
    ),
    Family(
        name="pydantic-ai", hand=Hand(arguments="compact"), user_agent="pydantic-ai/2.68.0",
        delegate=("delegate_to_agent", "prompt"),
    ),
    Family(
        name="smolagents", hand=Hand(as_text=True, parts=True), user_agent=PYTHON,
        delegate=("search_agent", "task"), title="lone",
    ),
    Family(
        name="litellm", hand=Hand(arguments="compact", empty="absent"), user_agent=PYTHON,
        delegate=("worker", "instructions"),
    ),
    Family(
        name="autogen", hand=Hand(), user_agent="AsyncOpenAI/Python 3.57.0",
        delegate=("assistant_b", "task"), title="lone",
    ),
    Family(
        name="vercel-ai", hand=Hand(arguments="sorted", empty="text"), stainless=False,
        user_agent="ai-sdk/openai-compatible/2.0.4 runtime/node.js/v20",
        delegate=("subtask", "prompt"),
    ),
    Family(
        name="gptme", hand=Hand(parts=True, first_call_only=True, strip_text=True),
        user_agent="OpenAI/Python 2.54.0", delegate=("subagent", "prompt"), title="lone",
    ),
)  # fmt: skip
