"""A load that is slow, and a server that is dead while it loads."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gateway.engine.loading import Loading, reading_s
from gateway.errors import EngineRejected, EngineTimeout, EngineUnavailable
from gateway.records import PolicyKind, PolicyRef, new_id

POLICY = PolicyRef(lineage_id=new_id(), version=1, kind=PolicyKind.FULL)
SILENT = EngineTimeout("silent", engine="one")
BUSY = EngineRejected("busy", engine="one")


class Server:
    """Answers `answers` to one look after the other, and is done with the load after the last."""

    def __init__(self, *answers: Exception | None, ends: bool = True) -> None:
        self._answers, self._ends = list(answers), ends
        self._asked = asyncio.Event()
        self.given_up = False
        self.limit_s = 0.0

    async def get(self, path: str) -> dict[str, Any]:
        assert path == "/model_info"
        answer = self._answers.pop(0) if self._answers else None
        if not self._answers and self._ends:
            self._asked.set()
        if answer is not None:
            raise answer
        return {}

    async def post(self, path: str, payload: Mapping[str, Any], limit_s: float) -> dict[str, Any]:
        assert (path, payload) == ("/load", {"a": 1})
        self.limit_s = limit_s
        try:
            await self._asked.wait()
        except asyncio.CancelledError:
            self.given_up = True
            raise
        return {}

    async def load(self, policy: PolicyRef = POLICY) -> None:
        await Loading("one", self.post, self.get, 60, look_s=0).post("/load", {"a": 1}, policy)


async def test_a_slow_load_is_waited_for_while_the_server_answers() -> None:
    server = Server(None, SILENT, SILENT, None, SILENT, SILENT, BUSY, SILENT, None)
    await server.load()
    assert not server.given_up


async def test_a_server_that_answers_nothing_any_more_is_given_up() -> None:
    server = Server(None, SILENT, SILENT, SILENT, ends=False)
    with pytest.raises(EngineUnavailable, match="answers nothing any more while it loads: silent"):
        await server.load()
    assert server.given_up


async def test_what_the_server_says_of_the_load_is_told() -> None:
    async def refused(*_: object) -> dict[str, Any]:
        raise EngineRejected("no such file", engine="one")

    async def late(*_: object) -> dict[str, Any]:
        raise SILENT

    async def answers(_: str) -> dict[str, Any]:
        return {}

    with pytest.raises(EngineRejected, match="no such file"):
        await Loading("one", refused, answers, 60).post("/load", {}, POLICY)
    with pytest.raises(EngineTimeout, match="not loaded in 60 s"):
        await Loading("one", late, answers, 60).post("/load", {}, POLICY)


async def test_a_load_may_take_longer_the_more_there_is_to_read(tmp_path: Path) -> None:
    weights = tmp_path / "model.safetensors"
    weights.touch()
    os.truncate(weights, 5_000_000_000)
    policy = replace(POLICY, uri=str(tmp_path))
    # 5 GB at 50 MB a second.
    assert reading_s(policy) == pytest.approx(100)
    server = Server(None)
    await server.load(policy)
    assert server.limit_s == pytest.approx(160)
    assert reading_s(replace(POLICY, uri="/elsewhere")) == 0
    assert reading_s(POLICY) == 0


async def test_who_is_cancelled_as_a_load_ends_hears_of_it() -> None:
    looking, leaving, left = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def get(_: str) -> dict[str, Any]:
        looking.set()
        try:
            await asyncio.Event().wait()
        finally:
            leaving.set()
            await left.wait()
        return {}

    async def post(_: str, __: Mapping[str, Any], ___: float) -> dict[str, Any]:
        await looking.wait()
        raise BUSY

    load = asyncio.create_task(Loading("one", post, get, 60.0, look_s=0.0).post("/", {}, POLICY))
    await leaving.wait()
    load.cancel()
    left.set()
    with pytest.raises(asyncio.CancelledError):
        await load
