"""Requests made of the OpenAPI document by schemathesis, and what it holds the answers to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import schemathesis
from hypothesis import HealthCheck, given, seed, settings
from schemathesis import GenerationMode
from schemathesis.checks import CHECKS, load_all_checks
from schemathesis.config import SchemathesisConfig

import tests.fuzz.hooks  # noqa: F401 - tells schemathesis how lines are written

CONFIG = Path(__file__).with_name("schemathesis.toml")


def tried(
    url: str, document: dict[str, Any], key: str, paths: Iterable[str], examples: int
) -> Counter[int]:
    """The statuses of all answers, right and wrong requests to each operation of these paths.

    Raises what schemathesis says of an answer that any of its checks finds wrong.
    """
    load_all_checks()
    schema = schemathesis.openapi.from_dict(document, config=SchemathesisConfig.from_path(CONFIG))
    headers = {"authorization": f"Bearer {key}"}
    statuses: Counter[int] = Counter()
    for path in paths:
        for method in schema[path]:
            operation = schema[path][method]
            for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
                _attempt(url, operation, headers, mode, examples, statuses)
    return statuses


def _attempt(  # noqa: PLR0917
    url: str,
    operation: Any,
    headers: dict[str, str],
    mode: GenerationMode,
    examples: int,
    statuses: Counter[int],
) -> None:
    @seed(20)
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def attempt(case: schemathesis.Case) -> None:
        answer = case.call(base_url=url, headers=headers)
        statuses[answer.status_code] += 1
        case.validate_response(answer, checks=CHECKS.get_all(), headers=headers)

    attempt()
