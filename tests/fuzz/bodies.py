"""Valid requests of every route that takes a body, as many of their fields in use as can be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

MODEL = "tiny"
#: A fake engine's vocabulary ends here; see `tests.unit.chat_models`.
VOCABULARY = 512

_SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
}
_FUNCTION = {"name": "get_weather", "description": "Looks it up.", "parameters": _SCHEMA}
_CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'},
}
_ASK = {"role": "user", "content": "The quick brown fox?"}


@dataclass(frozen=True, slots=True)
class Valid:
    """`family` says whose errors the route answers with."""

    family: str
    method: str
    path: str
    body: Any = None


def _chat(**fields: Any) -> Valid:
    body = {"model": MODEL, "messages": [_ASK], "max_tokens": 8, **fields}
    return Valid("openai", "POST", "/v1/chat/completions", body)


def _completion(**fields: Any) -> Valid:
    body = {"model": MODEL, "prompt": "The quick", "max_tokens": 8, **fields}
    return Valid("openai", "POST", "/v1/completions", body)


def _response(**fields: Any) -> Valid:
    body = {"model": MODEL, "input": "The quick brown fox?", "max_output_tokens": 8, **fields}
    return Valid("openai", "POST", "/v1/responses", body)


def _message(path: str = "/v1/messages", **fields: Any) -> Valid:
    body = {"model": MODEL, "messages": [_ASK], "max_tokens": 8, **fields}
    return Valid("anthropic", "POST", path, body)


_CHATS = (
    _chat(),
    _chat(
        stream=True, stream_options={"include_usage": True}, temperature=0.7, top_p=0.9, top_k=5,
        min_p=0.1, seed=7, stop=["\n\n", "dog"], frequency_penalty=0.5, presence_penalty=-0.5,
        repetition_penalty=1.1, logit_bias={"17": 5, "400": -100}, user="someone",
    ),
    _chat(n=2, logprobs=True, top_logprobs=3, max_completion_tokens=8, store=False, metadata={}),
    _chat(
        tools=[{"type": "function", "function": _FUNCTION}],
        tool_choice="auto",
        parallel_tool_calls=False,
        messages=[
            {"role": "system", "content": [{"type": "text", "text": "Be brief."}]},
            {"role": "developer", "content": "Use tools.", "name": "boss"},
            {"role": "user", "content": [{"type": "text", "text": "Weather?"}]},
            {"role": "assistant", "content": None, "tool_calls": [_CALL], "refusal": None},
            {"role": "tool", "tool_call_id": "call_1", "content": "Sunny."},
        ],
    ),
    _chat(
        tools=[{"type": "function", "function": _FUNCTION}],
        tool_choice={"type": "function", "function": {"name": "get_weather"}},
        stream=True,
    ),
    _chat(
        functions=[_FUNCTION],
        function_call="auto",
        messages=[
            _ASK,
            {"role": "assistant", "content": None, "function_call": _CALL["function"]},
            {"role": "function", "name": "get_weather", "content": "Sunny."},
        ],
    ),
    _chat(functions=[_FUNCTION], function_call={"name": "get_weather"}, stream=True),
    _chat(
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "answer", "strict": True, "schema": _SCHEMA},
        },
        reasoning_effort="low",
        chat_template_kwargs={"enable_thinking": False},
        modalities=["text"],
        service_tier="auto",
    ),
)  # fmt: skip
_COMPLETIONS = (
    _completion(n=2, best_of=2, logprobs=2, echo=False, suffix=None, user="someone"),
    _completion(prompt=[17, 300, 511], logit_bias={"511": 1}, seed=1, stop=" dog"),
    _completion(prompt=["The quick", "brown fox"], n=2, echo=True, stream=True),
    _completion(prompt=[[17, 300], [511]], best_of=1, echo=True),
    _completion(prompt=["The quick"], stream=True, stream_options={"include_usage": False}),
)
_RESPONSES = (
    _response(
        instructions="Be brief.", temperature=1, top_p=1, metadata={"a": "b"}, store=True,
        stream=True, truncation="auto", user="someone", prompt_cache_key="key",
        reasoning={"effort": "low", "summary": "auto"}, text={"format": {"type": "text"}},
        include=["message.output_text.logprobs"], top_logprobs=2,
    ),
    _response(
        input=[
            {"type": "message", "role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "input_text", "text": "Weather?"}]},
            {
                "type": "reasoning",
                "id": "rs_" + "0" * 36,
                "summary": [{"type": "summary_text", "text": "Hm."}],
            },
            {
                "type": "message",
                "role": "assistant",
                "id": "msg_" + "0" * 36,
                "status": "completed",
                "content": [{"type": "output_text", "text": "Wait.", "annotations": []}],
            },
            {
                "type": "function_call", "id": "fc_" + "0" * 36, "call_id": "call_1",
                "name": "get_weather", "arguments": "{}",
            },
            {"type": "function_call_output", "call_id": "call_1", "output": "Sunny."},
        ],
        tools=[
            {"type": "function", **_FUNCTION, "strict": True},
            {"type": "web_search"},
            {"type": "namespace", "name": "more", "tools": [{"type": "function", **_FUNCTION}]},
        ],
        tool_choice={"type": "function", "name": "get_weather"},
        parallel_tool_calls=True,
        client_metadata={"session_id": "s", "thread_id": "t"},
    ),
    _response(previous_response_id="resp_" + "0" * 32),
    _response(input=[{"type": "item_reference", "id": "msg_" + "0" * 36}]),
    _response(
        text={
            "format": {"type": "json_schema", "name": "answer", "schema": _SCHEMA},
            "verbosity": "low",
        }
    ),
)  # fmt: skip
_TALK = {
    "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "Weather?"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": "x"},
                {"type": "text", "text": "Wait."},
                {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": 1}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "toolu_1",
                    "content": [{"type": "text", "text": "Sunny."}],
                    "is_error": False,
                },
                {"type": "text", "text": "And?"},
            ],
        },
    ],
    "tools": [{"name": "get_weather", "description": "Looks it up.", "input_schema": _SCHEMA}],
}
_MESSAGES = (
    _message(
        stream=True, temperature=0.5, top_p=0.9, top_k=4, stop_sequences=["dog"],
        metadata={"user_id": "someone"}, thinking={"type": "enabled", "budget_tokens": 1024},
        service_tier="auto",
    ),
    _message(**_TALK, tool_choice={"type": "auto", "disable_parallel_tool_use": True}),
    _message(
        **_TALK,
        tool_choice={"type": "tool", "name": "get_weather"},
        output_config={"effort": "low", "format": {"type": "json_schema", "schema": _SCHEMA}},
    ),
    _message("/v1/messages/count_tokens", **_TALK),
)  # fmt: skip


def valid(turn_id: UUID, session_id: UUID) -> tuple[Valid, ...]:
    """All of them; the turn and the session are ones that the caller's key may speak of."""
    return (
        *_CHATS,
        *_COMPLETIONS,
        *_RESPONSES,
        *_MESSAGES,
        Valid("openai", "GET", f"/v1/responses/resp_{turn_id.hex}"),
        Valid("openai", "GET", f"/v1/responses/resp_{turn_id.hex}/input_items?limit=2&order=asc"),
        Valid("openai", "DELETE", "/v1/responses/resp_" + "0" * 32),
        Valid("openai", "GET", "/v1/models/tiny"),
        Valid(
            "api",
            "POST",
            f"/v1/turns/{turn_id}/feedback",
            {"score": 0.5, "text": "Good.", "source": "api"},
        ),
        Valid("api", "POST", f"/v1/sessions/{session_id}/end"),
    )
