"""Scoring given ids with SGLang: the token itself, and others in its place."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from gateway.engine import codec
from gateway.engine.base import Scored
from gateway.errors import EngineRejected
from gateway.records import PolicyRef

#: Places of one request for the values of chosen ids: the server gives each place the values of
#: all that are asked for anywhere.
WINDOW = 64


def score_body(rid: str, ids: list[int], start: int, policy: PolicyRef, **more: Any) -> bytes:
    """The body that asks for the log-probabilities of ids[start - 1:] and samples nothing."""
    body: dict[str, Any] = {
        "rid": rid,
        "input_ids": ids,
        "sampling_params": {"max_new_tokens": 0, "temperature": 1.0},
        "return_logprob": True,
        "logprob_start_len": start - 1,
        "stream": False,
        **more,
    }
    if policy.adapter is not None:
        body["lora_path"] = policy.adapter
    return codec.encode(body)


def logprobs_of(event: codec.Event, ids: Sequence[int], start: int, engine: str) -> list[float]:
    """Values [len(ids) - start]. Raises EngineRejected where they are not those of these ids."""
    # The first entry stands for ids[start - 1], which the server does not score.
    entries = (event.meta_info.input_token_logprobs or [])[1:]
    values = list(codec.logprob_values(entries))
    scored = [token for _, token, _ in entries]
    # The server names the last id of the vocabulary 0 here; its score is the right one.
    if len(scored) != len(ids) - start or any(
        said not in (asked, 0) for said, asked in zip(scored, ids[start:], strict=True)
    ):
        raise EngineRejected(
            f"asked to score {len(ids) - start} tokens, the engine scored {len(scored)} or others",
            engine=engine,
        )
    if not all(map(math.isfinite, values)):
        raise EngineRejected("a score is not finite", engine=engine)
    return values


def likeliest_of(event: codec.Event, values: list[float], top: int, engine: str) -> Scored:
    """The `top` likeliest tokens of each place, with the values of the tokens themselves."""
    places = (event.meta_info.input_top_logprobs or [])[1:]
    found = [
        sorted(
            ((token, value) for value, token, _ in entries or () if value is not None),
            key=lambda pair: -pair[1],
        )[:top]
        for entries in places
    ]
    if len(found) != len(values) or any(len(entries) != top for entries in found):
        raise EngineRejected(f"asked for {top} alternatives a place, got others", engine=engine)
    return Scored(
        logprobs=tuple(values),
        top_ids=tuple(tuple(token for token, _ in entries) for entries in found),
        top_logprobs=tuple(tuple(value for _, value in entries) for entries in found),
    )


def chosen_of(
    event: codec.Event, among: Sequence[Sequence[int]], engine: str
) -> list[tuple[float, ...]]:
    """The values of the ids that were chosen for each place, in their order."""
    places = (event.meta_info.input_token_ids_logprobs or [])[1:]
    if len(places) != len(among):
        raise EngineRejected(f"asked for {len(among)} places, got {len(places)}", engine=engine)
    rows = []
    for entries, wanted in zip(places, among, strict=True):
        known = {token: value for value, token, _ in entries or () if value is not None}
        if any(token not in known for token in wanted):
            raise EngineRejected("an alternative has no finite score", engine=engine)
        rows.append(tuple(known[token] for token in wanted))
    return rows


def windows(count: int) -> Iterator[tuple[int, int]]:
    """[0, count) in pieces of at most WINDOW."""
    for begin in range(0, count, WINDOW):
        yield begin, min(begin + WINDOW, count)
