"""Runs in an environment that holds the official OpenAI client and nothing of this project.

Does what its first argument names against the gateway at OPENAI_BASE_URL, and prints what it saw
as one JSON object.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any, Literal

import openai
from pydantic import BaseModel

#: A model that says anything is made to call, and bounded in what it says then.
FORCED = "FORCED" in os.environ
CITY: Any = {"enum": ["Oslo", "Bergen"]} if FORCED else {"type": "string"}
SCHEMA: Any = {"type": "object", "properties": {"city": CITY}}
if FORCED:
    SCHEMA |= {"required": ["city"], "additionalProperties": False}
CHAT_TOOL: Any = {
    "type": "function",
    "function": {"name": "get_weather", "description": "Tells it.", "parameters": SCHEMA},
}
TOOL: Any = {"type": "function", "name": "get_weather", "parameters": SCHEMA, "strict": False}
ASK: Any = [{"role": "user", "content": "Weather?"}]
NAMED: Any = {"type": "function", "name": "get_weather"}
CALL: Any = {"tool_choice": NAMED, "parallel_tool_calls": False, "max_output_tokens": 900}
SAY: Any = {"tool_choice": "none", "max_output_tokens": 24}
CHAT_CALL: Any = {
    "tool_choice": {"type": "function", "function": {"name": "get_weather"}},
    "parallel_tool_calls": False,
    "max_tokens": 900,
}
CHAT_SAY: Any = {"tool_choice": "none", "max_tokens": 24}
OLD_CALL: Any = {"function_call": {"name": "get_weather"}, "max_tokens": 900}
if not FORCED:
    CALL = SAY = CHAT_CALL = CHAT_SAY = OLD_CALL = {}


#: Of what is parsed: a model that says anything would go on with a text or a number for long.
City: Any = Literal["Oslo", "Bergen"] if FORCED else str
Degrees: Any = Literal[20, 21] if FORCED else int
BOUND: Any = {"max_tokens": 900} if FORCED else {}
BOUND_RESPONSE: Any = {"max_output_tokens": 900} if FORCED else {}


class Weather(BaseModel):
    city: City
    degrees: Degrees


def told(arguments: str) -> str:
    """What the tool says."""
    return f"{json.loads(arguments)['city']}: 21"


def chat_results(message: Any) -> list[Any]:
    return [
        {"role": "tool", "tool_call_id": call.id, "content": told(call.function.arguments)}
        for call in message.tool_calls
    ]


def results(response: Any) -> list[Any]:
    return [
        {"type": "function_call_output", "call_id": item.call_id, "output": told(item.arguments)}
        for item in response.output
        if item.type == "function_call"
    ]


def seen(reply: Any) -> Any:
    return reply.to_dict()


def chat() -> Any:
    with openai.OpenAI(max_retries=0) as client:
        ask: Any = {"model": "tiny", "tools": [CHAT_TOOL]}
        first = client.chat.completions.create(messages=ASK, **ask, **CHAT_CALL)
        message = first.choices[0].message
        history = [*ASK, message, *chat_results(message)]
        raw = client.chat.completions.with_raw_response.create(messages=history, **ask, **CHAT_SAY)
        last = raw.parse()
        models = [model.id for model in client.models.list()]
    return {"first": seen(first), "last": seen(last), "models": models, "id": raw.request_id}


async def chat_streamed() -> Any:
    """The stream helper, then a bare stream put together by hand."""
    async with openai.AsyncOpenAI(max_retries=0) as client:
        ask: Any = {"model": "tiny", "tools": [CHAT_TOOL]}
        kinds: list[str] = []
        usage: Any = {"stream_options": {"include_usage": True}}
        async with client.chat.completions.stream(
            messages=ASK, **ask, **usage, **CHAT_CALL
        ) as stream:
            async for event in stream:
                if event.type not in kinds:
                    kinds.append(event.type)
            first = await stream.get_final_completion()
        message = first.choices[0].message
        history = [*ASK, message, *chat_results(message)]
        text, finishes, usages = "", [], []
        async for chunk in await client.chat.completions.create(
            messages=history, stream=True, **ask, **usage, **CHAT_SAY
        ):
            if chunk.usage is not None:
                usages.append(chunk.usage.to_dict())
            for choice in chunk.choices:
                text += choice.delta.content or ""
                finishes += [choice.finish_reason] if choice.finish_reason else []
    return {
        "first": seen(first),
        "kinds": kinds,
        "text": text,
        "finishes": finishes,
        "usages": usages,
    }


def parsed() -> Any:
    """`parse` with a model of pydantic, in both APIs."""
    with openai.OpenAI(max_retries=0) as client:
        chat = client.chat.completions.parse(
            model="tiny", messages=ASK, response_format=Weather, **BOUND
        )
        response = client.responses.parse(
            model="tiny", input=ASK, text_format=Weather, **BOUND_RESPONSE
        )
        tool = openai.pydantic_function_tool(Weather, name="get_weather")
        called = client.chat.completions.parse(
            model="tiny", messages=ASK, tools=[tool], **CHAT_CALL
        )
    of_chat, of_response = chat.choices[0].message.parsed, response.output_parsed
    [call] = called.choices[0].message.tool_calls or ()
    of_call: Any = call.function.parsed_arguments
    return [one and one.model_dump() for one in (of_chat, of_response, of_call)]


def responses() -> Any:
    """Items sent back, then the stored conversation gone on with."""
    with openai.OpenAI(max_retries=0) as client:
        ask: Any = {"model": "tiny", "tools": [TOOL]}
        first = client.responses.create(input=ASK, **ask, **CALL)
        asked = [*ASK, *first.output, *results(first)]
        last = client.responses.create(input=asked, **ask, **SAY)
        more = client.responses.create(
            input="Thanks. Again?", previous_response_id=last.id, **ask, **SAY
        )
        kept = client.responses.retrieve(last.id)
        items = client.responses.input_items.list(last.id, order="asc")
    return {
        "first": seen(first),
        "last": seen(last),
        "more": seen(more),
        "kept": seen(kept),
        "items": [item.type for item in items],
        "text": last.output_text,
    }


async def responses_streamed() -> Any:
    async with openai.AsyncOpenAI(max_retries=0) as client:
        ask: Any = {"model": "tiny", "tools": [TOOL]}
        kinds: list[str] = []
        async with client.responses.stream(input=ASK, **ask, **CALL) as stream:
            async for event in stream:
                if event.type not in kinds:
                    kinds.append(event.type)
            first = await stream.get_final_response()
        text, numbers, last = "", [], None
        async for event in await client.responses.create(
            input=results(first), previous_response_id=first.id, stream=True, **ask, **SAY
        ):
            numbers.append(event.sequence_number)
            if event.type == "response.output_text.delta":
                text += event.delta
            elif event.type in ("response.completed", "response.incomplete"):
                last = seen(event.response)
    return {"first": seen(first), "last": last, "kinds": kinds, "text": text, "numbers": numbers}


def functions() -> Any:
    """The old form of tools: whole, then streamed, then the result sent back."""
    with openai.OpenAI(max_retries=0) as client:
        ask: Any = {"model": "tiny", "functions": [CHAT_TOOL["function"]]}
        first = client.chat.completions.create(messages=ASK, **ask, **OLD_CALL)
        message = first.choices[0].message
        called = message.function_call
        assert called is not None
        result: Any = {"role": "function", "name": called.name, "content": told(called.arguments)}
        last = client.chat.completions.create(
            messages=[*ASK, message, result], function_call="none", max_tokens=24, **ask
        )
        parts = []
        for chunk in client.chat.completions.create(messages=ASK, stream=True, **ask, **OLD_CALL):
            parts += [part.to_dict() for part in [chunk.choices[0].delta.function_call] if part]
    return {"first": seen(first), "last": seen(last), "parts": parts}


def prompts() -> Any:
    """Several prompts of old completions, repeated: whole and streamed."""
    with openai.OpenAI(max_retries=0) as client:
        ask: Any = {"model": "tiny", "prompt": ["Hello", "Weather?"], "n": 2, "echo": True}
        whole = client.completions.create(**ask)
        texts = [""] * 4
        finishes = []
        for chunk in client.completions.create(stream=True, **ask):
            for choice in chunk.choices:
                texts[choice.index] += choice.text
                finishes += [choice.index] if choice.finish_reason else []
    return {"whole": seen(whole), "texts": texts, "finishes": sorted(finishes)}


def errors() -> Any:
    """Each class of error, and how it is worded."""
    found: dict[str, Any] = {}
    with openai.OpenAI(max_retries=0) as client:
        for api, create in (
            (
                "chat",
                lambda asking, asked, **more: asking.chat.completions.create(
                    messages=asked, **more
                ),
            ),
            (
                "responses",
                lambda asking, asked, **more: asking.responses.create(input=asked, **more),
            ),
            (
                "completions",
                lambda asking, asked, **more: asking.completions.create(
                    prompt=asked[0]["content"], **more
                ),
            ),
        ):
            for name, asked, more, key in (
                ("key", ASK, {"model": "tiny"}, "wrong"),
                ("model", ASK, {"model": "other"}, None),
                ("length", [{"role": "user", "content": "a b " * 9000}], {"model": "tiny"}, None),
                ("range", ASK, {"model": "tiny", "temperature": 9}, None),
                *(() if FORCED else (("full", ASK, {"model": "tiny"}, None),)),
            ):
                asking = client if key is None else client.with_options(api_key=key)
                try:
                    create(asking, asked, **more)
                except openai.APIStatusError as error:
                    found[f"{api} {name}"] = {
                        "class": type(error).__name__,
                        "status": error.status_code,
                        "code": error.code,
                        "message": error.message,
                        "request_id": error.request_id,
                    }
    return found


def patient() -> Any:
    """The client with a retry of its own."""
    with openai.OpenAI(max_retries=1) as client:
        try:
            seen(client.chat.completions.create(model="tiny", messages=ASK))
        except openai.APIStatusError as error:
            return error.status_code
    return 200


DOINGS = {
    "chat": chat,
    "parsed": parsed,
    "responses": responses,
    "functions": functions,
    "prompts": prompts,
    "errors": errors,
    "patient": patient,
}
ASYNC = {"chat_streamed": chat_streamed, "responses_streamed": responses_streamed}

if __name__ == "__main__":
    name = sys.argv[1]
    told_of = asyncio.run(ASYNC[name]()) if name in ASYNC else DOINGS[name]()
    sys.stdout.write(json.dumps(told_of))
