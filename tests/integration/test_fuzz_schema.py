"""The OpenAPI document, and requests that schemathesis makes of it, right ones and wrong ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import schemathesis
from hypothesis import HealthCheck, given, seed, settings
from schemathesis import GenerationMode
from schemathesis.checks import load_all_checks
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.fixtures_gateway import Gateway
from tests.fuzz.gateway import fuzz_gateway

EXAMPLES = 25
ROUTES = (
    ("/v1/chat/completions", "POST"),
    ("/v1/completions", "POST"),
    ("/v1/responses", "POST"),
    ("/v1/messages", "POST"),
    ("/v1/messages/count_tokens", "POST"),
    ("/v1/models", "GET"),
    ("/v1/models/{model}", "GET"),
    ("/v1/responses/{response_id}/input_items", "GET"),
    ("/v1/turns/{turn_id}/feedback", "POST"),
)
CHECKS = [
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
]


@pytest.fixture
async def fuzzable(database_url: str, tmp_path: Path) -> AsyncIterator[Gateway]:
    async with fuzz_gateway(database_url, tmp_path) as gateway:
        yield gateway


async def test_the_document_has_every_route_of_the_dialects(fuzzable: Gateway) -> None:
    document = await _document(fuzzable)
    posted = {path for path, operations in document["paths"].items() if "post" in operations}
    assert {path for path, method in ROUTES if method == "POST"} <= posted
    for path, operations in document["paths"].items():
        for method in operations.keys() & {"get", "post", "delete"}:
            assert "422" not in operations[method]["responses"], path
    chat = document["components"]["schemas"]["ChatBody"]
    assert chat["required"] == ["model", "messages"]
    assert {"minimum": 0, "maximum": 2, "type": "number"} in chat["properties"]["temperature"][
        "anyOf"
    ]


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
async def test_answers_are_as_documented(fuzzable: Gateway, mode: GenerationMode) -> None:
    document = await _document(fuzzable)
    for path, method in ROUTES:
        statuses = await asyncio.to_thread(_tried, fuzzable, document, path, method, mode)
        assert len(statuses) >= EXAMPLES
        assert max(statuses) < 500, path


async def _document(gateway: Gateway) -> dict[str, Any]:
    url = f"{gateway.url}/admin/v1/openapi.json"
    headers = {"authorization": f"Bearer {gateway.keys.admin}"}
    async with aiohttp.ClientSession(headers=headers) as http, http.get(url) as answer:
        document: dict[str, Any] = await answer.json()
        return document


def _tried(
    gateway: Gateway, document: dict[str, Any], path: str, method: str, mode: GenerationMode
) -> list[int]:
    """The statuses of all answers. Raises what schemathesis says of one that is wrong."""
    operation = schemathesis.openapi.from_dict(document)[path][method]
    headers = {"authorization": f"Bearer {gateway.keys.agent}"}
    statuses: list[int] = []

    @seed(20)
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        derandomize=False,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def attempt(case: schemathesis.Case) -> None:
        answer = case.call(base_url=gateway.url, headers=headers)
        statuses.append(answer.status_code)
        case.validate_response(answer, checks=CHECKS, headers=headers)

    load_all_checks()
    attempt()
    return statuses
