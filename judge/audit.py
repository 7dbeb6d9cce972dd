"""An independent judge that looks at a share of the turns again, to say how often it agrees.

It stands at an endpoint of its own, sees what the first judge saw but for explicit feedback, and
knows nothing of the verdict. What it finds is stored beside the verdict and changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Protocol
from uuid import UUID

from gateway.records import JudgeJob, Judgement
from gateway.store.audits import Audits
from gateway.telemetry import get_logger
from judge.config import AuditConfig
from judge.usage import Price, usage_of
from judge.verdicts import Evidence, Judge

log = get_logger(__name__)

NAME = "audit"

#: What is compared with the share: the last 32 bits of an id, which are random.
_SPACE = 2**32


class Store(Protocol):
    async def put(self, job: JudgeJob, judgement: Judgement) -> bool:
        """Store an audit of a job; False where it has one."""
        ...


def drawn(turn_id: UUID, share: float) -> bool:
    """Whether a turn is in the share; the same for every worker and attempt."""
    return turn_id.int % _SPACE < share * _SPACE


@dataclass(frozen=True, slots=True)
class Auditor:
    """`judge` is asked once a turn, within `timeout_s`."""

    judge: Judge
    store: Store
    share: float
    timeout_s: float
    price: Price

    async def audit(self, job: JudgeJob, evidence: Evidence, judgement: Judgement) -> float | None:
        """The other score of a turn that is in the share; None where there is none.

        Nothing that goes wrong here touches the job.
        """
        if judgement.score is None or not drawn(job.turn_id, self.share):
            return None
        try:
            async with asyncio.timeout(self.timeout_s):
                found = await self.judge.judge(replace(evidence, feedback=()))
            if found is None or found.score is None:
                return None
            found = replace(found, judge=NAME, hint=None)
            stored = await self.store.put(
                job, replace(found, usage=usage_of(found, self.price) or None)
            )
        except Exception as error:  # noqa: BLE001 - the job is done; only its audit is not
            log.warning("not_audited", turn_id=str(job.turn_id), error=type(error).__name__)
            return None
        return found.score if stored else None


@asynccontextmanager
async def auditing(config: AuditConfig, store: Audits) -> AsyncIterator[Auditor]:
    """The auditor of a configuration; its endpoint is closed on the way out."""
    # The client's library is loaded only where it is used.
    from judge.endpoint import Endpoint
    from judge.llm import LlmJudge

    llm = config.llm
    endpoint = Endpoint(llm)
    try:
        yield Auditor(
            judge=LlmJudge(endpoint, llm),
            store=store,
            share=config.share,
            timeout_s=config.timeout_s,
            price=Price(prompt_usd=llm.prompt_usd, completion_usd=llm.completion_usd),
        )
    finally:
        await endpoint.close()
