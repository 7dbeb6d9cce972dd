"""The teacher that the settings ask for, with its engines and renderer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from gateway.config import EngineSettings, Settings
from gateway.engine.sglang import SglangEngine
from gateway.errors import ConfigError, JudgeError
from gateway.records import JudgeJob, Teaching
from gateway.store.database import Database
from gateway.store.policies import PolicyStore
from gateway.store.teachings import Teachings
from gateway.tokens.choice import make_renderer
from gateway.tokens.tokenizer import Tokenizer
from judge.config import TeacherConfig
from judge.taught import Teach
from judge.teacher import Teacher


@asynccontextmanager
async def opened(
    settings: Settings, config: TeacherConfig, database: Database
) -> AsyncIterator[Teach]:
    """What teaches a turn; engines are closed on the way out.

    Raises ConfigError where there is no tokenizer or engine, or the vocabularies differ.
    """
    async with AsyncExitStack() as stack:

        def engines(*wanted: EngineSettings) -> tuple[SglangEngine, ...]:
            made = tuple(SglangEngine(each) for each in wanted)
            for engine in made:
                stack.push_async_callback(engine.close)
            return made

        if settings.model.path is None:
            raise ConfigError("model.path is not set: a teacher needs the model's tokenizer")
        students = engines(*settings.token_engines)
        if not students and config.engine is None:
            raise ConfigError("judge.teacher: none of the engines tells token ids")
        tokenizer = await asyncio.to_thread(_tokenizer, settings.model.path, config.model_path)
        context_length = settings.model.context_length
        teacher = Teacher(
            kind=config.kind,
            engines=engines(config.engine) if config.engine else students,
            students=students,
            live=PolicyStore(database).live_of,
            renderer=await asyncio.to_thread(make_renderer, settings.model.renderer, tokenizer),
            context_length=None if config.engine else context_length,
            top_k=config.top_k,
            top_of=config.top_of,
            retries=config.retries,
            timeout_s=config.timeout_s,
        )
        lessons = Teachings(database)

        async def teach(job: JudgeJob, hint: str) -> Teaching:
            lesson = await lessons.lesson(job.turn_id)
            if lesson is None:
                raise JudgeError("the turn's conversation or ids are not all stored")
            return await teacher.teach(lesson, hint)

        yield teach


def _tokenizer(policy: Path, fixed: Path | None) -> Tokenizer:
    """The teacher's own where it has one. Raises ConfigError where an id means another token."""
    own = Tokenizer.load(policy)
    if fixed is None:
        return own
    other = Tokenizer.load(fixed)
    size = own.facts.vocab_size
    differing = next((id_ for id_ in range(size) if own.token_of(id_) != other.token_of(id_)), None)
    if differing is not None:
        raise ConfigError(
            f"judge.teacher.model_path: id {differing} is another token there than in the policy's "
            "vocabulary, so that it cannot score what the policy samples"
        )
    return other
