"""What the doctor asks of the database, the engines, the model and the judge's endpoint."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable

import aiohttp
import asyncpg

from gateway.cli.finding import Finding, ok, warning, wrong
from gateway.config import EngineSettings
from gateway.engine.openai import OpenAIEngine
from gateway.engine.sglang import SglangEngine
from gateway.errors import ConfigError, EngineError, NextstateError, RevisionMismatch, StoreError
from gateway.local.access import database_url
from gateway.local.config import LocalSettings
from gateway.local.model import DEFAULT_MODEL
from gateway.store.database import REVISIONS, Database
from gateway.tokens.choice import make_renderer
from gateway.tokens.tokenizer import Tokenizer

#: PostgreSQL 15, as the server itself counts.
_OLDEST = 150_000
_SKEW_S, _WORST_SKEW_S = 1.0, 30.0
_PATIENCE_S = 10.0

_NO_KEYS = "SELECT NOT EXISTS (SELECT FROM api_keys WHERE revoked_at IS NULL)"


async def findings(settings: LocalSettings) -> list[Finding]:
    """The database first, then the model, the engines and the LLM judge."""
    tokenizer, model = await asyncio.to_thread(_model, settings)
    engines = () if settings.own_engine else settings.engines
    if settings.own_engine:
        model.append(ok("engines", "none is configured: `nextstate up` starts its own"))
    database, judge, *asked = await asyncio.gather(
        _database(settings),
        _judge(settings),
        *(_engine(engine, settings, tokenizer) for engine in engines),
    )
    return [*database, *model, *(one for some in asked for one in some), *judge]


async def _database(settings: LocalSettings) -> list[Finding]:
    try:
        url = database_url(settings)
    except NextstateError as error:
        mend = "set NEXTSTATE_DATABASE__URL, or start the stack with `nextstate up`"
        return [wrong("database", error.message, mend)]
    try:
        database = await Database.open(settings.database, url, application="nextstate-doctor")
    except StoreError as error:
        mend = "check that PostgreSQL runs, and database.url: host, port, user, password, name"
        return [wrong("database", error.message, mend)]
    try:
        return [await _version(database), *await _schema(database), await _clock(database)]
    except (StoreError, asyncpg.PostgresError) as error:
        return [wrong("database", str(error), "see the log of PostgreSQL")]
    finally:
        await database.close()


async def _version(database: Database) -> Finding:
    number = int(await database.fetchval("SELECT current_setting('server_version_num')"))
    name = await database.fetchval("SELECT current_setting('server_version')")
    if number < _OLDEST:
        return wrong("database", f"PostgreSQL {name}", "upgrade it to 15 or later")
    return ok("database", f"PostgreSQL {name} answers")


async def _schema(database: Database) -> list[Finding]:
    try:
        await database.check_revision(newest=True)
    except RevisionMismatch as error:
        return [wrong("schema", error.message, "run `nextstate migrate`")]
    found = [ok("schema", f"at revision {REVISIONS[-1]}")]
    if await database.fetchval(_NO_KEYS):
        mend = "run `nextstate keys create NAME`"
        found.append(warning("keys", "there is no API key that is valid", mend))
    return found


async def _clock(database: Database) -> Finding:
    """The difference to the clock of Postgres, less half of what asking took."""
    before = time.time()
    there = float(await database.fetchval("SELECT extract(epoch FROM clock_timestamp())::float8"))
    after = time.time()
    skew = there - (before + after) / 2
    said = f"{abs(skew):.3f} s {'behind' if skew > 0 else 'ahead of'} the database"
    if abs(skew) < _SKEW_S + (after - before) / 2:
        return ok("clock", said)
    mend = "keep both machines' clocks by NTP: leases and ages of samples are told by them"
    return (wrong if abs(skew) >= _WORST_SKEW_S else warning)("clock", said, mend)


def _model(settings: LocalSettings) -> tuple[Tokenizer | None, list[Finding]]:
    """The tokenizer, where there is one, and what the model's files say."""
    path = settings.model.path
    if path is None:
        if settings.text_engines and not settings.token_engines:
            return None, [ok("model", "every engine gives text: no model files are needed")]
        if settings.own_engine:
            return None, [ok("model", f"{DEFAULT_MODEL}, which `nextstate up` brings")]
        mend = "set model.path to the Hugging Face directory that the engines serve"
        return None, [wrong("model", "model.path is not set", mend)]
    try:
        tokenizer = Tokenizer.load(path)
        renderer = make_renderer(settings.model.renderer, tokenizer, settings.model.modalities)
    except ConfigError as error:
        mend = "the directory needs config.json, tokenizer.json and a chat template"
        return None, [wrong("model", error.message, mend)]
    facts = tokenizer.facts
    said = (
        f"{facts.model_type}, {facts.vocab_size} ids, context {facts.context_length}, "
        f"rendered by {type(renderer).__name__}"
    )
    if facts.stop_token_ids:
        return tokenizer, [ok("model", said)]
    mend = "give generation_config.json an eos_token_id"
    return tokenizer, [wrong("model", f"{said}; nothing ends a reply", mend)]


async def _engine(
    engine: EngineSettings, settings: LocalSettings, tokenizer: Tokenizer | None
) -> list[Finding]:
    what = f"engine {engine.name}"
    client = SglangEngine(engine) if engine.kind == "sglang" else OpenAIEngine(engine)
    try:
        async with asyncio.timeout(_PATIENCE_S):
            status = await client.status()
    except (EngineError, TimeoutError) as error:
        said = f"{engine.url}: {str(error) or 'no answer'}"
        return [wrong(what, said, "start the engine, or correct its url or api_key in `engines`")]
    finally:
        await client.close()
    if engine.kind == "openai":
        return [ok(what, f"{engine.url} answers; its turns are judged, never trained on")]
    found = []
    if not status.supports_lora:
        said = "it takes no adapters: it can serve lineages of whole weights alone"
        mend = "for adapters, start it with --enable-lora, --max-lora-rank, --lora-target-modules"
        found.append(warning(what, said, mend))
    if status.model != settings.model.name:
        name = settings.model.name
        mend = f"check that it serves the model of model.path; --served-model-name {name}"
        found.append(warning(what, f"it calls its model {status.model!r}", mend))
    if tokenizer is not None:
        found += _same_model(what, status.vocab_size, status.context_length, tokenizer, settings)
    return found or [ok(what, f"{engine.url} serves {status.model}, takes adapters")]


def _same_model(
    what: str, vocab: int | None, context: int | None, tokenizer: Tokenizer, settings: LocalSettings
) -> Iterable[Finding]:
    facts = tokenizer.facts
    if vocab is not None and vocab != facts.vocab_size:
        said = f"its model has {vocab} ids and that of model.path {facts.vocab_size}"
        yield wrong(what, said, "let engine and gateway name the same model directory")
    longest = settings.model.context_length or facts.context_length
    if context is not None and context < longest:
        said = f"it takes {context} tokens, and the gateway believes {longest}"
        yield warning(what, said, f"set model.context_length to {context}")


async def _judge(settings: LocalSettings) -> list[Finding]:
    """Whether the LLM judge's endpoint answers, where there is one."""
    llm = settings.judging.llm
    if llm is None or llm.base_url is None:
        return [ok("judge", "rules alone decide; no LLM is configured")]
    if settings.own_engine and settings.judge.llm and settings.judge.llm.base_url is None:
        return [ok("judge", "asks the engine that `nextstate up` starts")]
    headers = {"Authorization": f"Bearer {llm.api_key.get_secret_value()}"} if llm.api_key else {}
    url = f"{llm.base_url.rstrip('/')}/models"
    mend = "check judge.llm: base_url (it ends with /v1 as a rule), api_key, model"
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_PATIENCE_S)) as http,
            http.get(url, headers=headers, allow_redirects=False) as response,
        ):
            status = response.status
    except (aiohttp.ClientError, TimeoutError) as error:
        return [wrong("judge", f"{url}: {str(error) or 'no answer'}", mend)]
    if status in (401, 403):
        return [wrong("judge", f"{url} refuses the key ({status})", mend)]
    return [ok("judge", f"{llm.base_url} answers")]
