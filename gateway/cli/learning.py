"""`nextstate train --dry-run`, `train --offline` and `export`."""

from __future__ import annotations

import asyncio
import json
import struct
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import typer

from gateway.cli.terminal import local_settings, say
from gateway.config import load
from gateway.errors import ConfigError, NotFound
from gateway.wire.parquet import Column, Kind, ParquetWriter

if TYPE_CHECKING:
    from gateway.store.database import Database
    from gateway.store.lineages import Lineage
    from trainer.config import TrainerSettings
    from trainer.exported import Line
    from trainer.preview import Preview

T = TypeVar("T")

#: The newest turns, which a dry run explains one by one beside those that wait for a step.
_EXPLAINED = 200

#: Of a table: int32, int8 and float32, little-endian, one value a token.
_PACKED = {"ids": "i", "mask": "b", "logprobs": "f", "versions": "i"}
_TEXTS = ("id", "turn_id", "session_id", "user", "finish_reason", "rule", "group")
_COLUMNS = (
    *(Column(name, Kind.TEXT) for name in (*_TEXTS, "state", "reason")),
    *(Column(name, Kind.FLOAT) for name in ("score", "weight", "temperature", "arrived_at")),
    Column("depth", Kind.INT),
    *(Column(name, Kind.BYTES) for name in _PACKED),
    *(Column(name, Kind.JSON) for name in ("teaching", "kept")),
)
#: A row group ends at either.
_GROUP_ROWS, _GROUP_TOKENS = 512, 1024 * 1024


def dry_run(*, as_json: bool = False) -> None:
    """Print what each lineage's next step would train on, and why other turns would not be.

    For programs, one JSON object a lineage and line.
    """
    from gateway.store.export import Exports
    from gateway.store.policies import PolicyStore
    from gateway.store.samples import SampleStore
    from trainer.config import TrainerSettings
    from trainer.preview import preview
    from trainer.sampling import Sampler

    settings = load(TrainerSettings)
    vocab = _vocabulary(_model(settings))

    async def look(database: Database) -> None:
        store = SampleStore(database)
        for name in settings.trainer.lineages:
            lineage = await _lineage(database, name)
            live = await PolicyStore(database).live_of(lineage.id)
            sampler = Sampler(store, lineage.id, settings, vocab)
            seen = await preview(store, sampler, live_version=live.version, now=time.time())
            newest = dict(await Exports(database).outcomes(lineage.id, _EXPLAINED))
            chosen = {sample.turn_id for sample in seen.chosen}
            others = {
                turn: why for turn, why in {**newest, **seen.others}.items() if turn not in chosen
            }
            show = _print_json if as_json else _show
            show(name, live.version, settings.batch, seen, others)

    _on_database(settings, look)


def _show(name: str, live: int, batch: int, seen: Preview, others: dict[Any, str]) -> None:
    state = "due" if seen.due else "not due"
    typer.echo(
        f"{name}: version {live} is live; {len(seen.chosen)} of {batch} samples for the next step "
        f"({state}), {seen.waiting} turns wait for a verdict"
    )
    for sample in seen.chosen:
        rule = f" by {sample.rule}" if sample.rule else ""
        typer.echo(
            f"  train  {sample.turn_id}  score {sample.score:+g}{rule}, "
            f"{len(sample.sampled_ids)} tokens"
        )
    for turn, reason in others.items():
        typer.echo(f"  not    {turn}  {reason}")
    for reason, count in Counter(others.values()).most_common():
        typer.echo(f"  {count:>5} {reason}")


def _print_json(name: str, live: int, batch: int, seen: Preview, others: dict[Any, str]) -> None:
    chosen = [
        {
            "turn_id": str(sample.turn_id),
            "score": sample.score,
            "rule": sample.rule,
            "tokens": len(sample.sampled_ids),
        }
        for sample in seen.chosen
    ]
    found = {
        "lineage": name,
        "live_version": live,
        "batch": batch,
        "due": seen.due,
        "waiting": seen.waiting,
        "train": chosen,
        "not": {str(turn): reason for turn, reason in others.items()},
    }
    typer.echo(json.dumps(found))


def offline(path: Path, *, full: bool) -> None:
    """Train a version on an export, with neither database nor engine.

    An adapter, or with `full` all weights, as Megatron always does; under torchrun on all ranks.
    """
    from gateway.device import device
    from gateway.records import PolicyKind
    from gateway.telemetry import configure_logging
    from trainer.backends.build import build_backend
    from trainer.config import TrainerSettings
    from trainer.crew import agree
    from trainer.distributed import World, place
    from trainer.learner import Learner
    from trainer.offline import train_file

    settings = load(TrainerSettings)
    configure_logging(settings.log, "trainer", sys.stderr)
    config = settings.trainer
    kind = PolicyKind.FULL if full or config.backend == "megatron" else PolicyKind.LORA
    world = World.open(place(), device(), config.distributed.timeout_s)

    def told(step: int, metrics: dict[str, float]) -> None:
        if world.leads:
            values = {name: round(value, 6) for name, value in metrics.items()}
            typer.echo(json.dumps({"step": step, **values}))

    try:
        agree(world, config)
        backend = build_backend(_model(settings), config, device(), kind, world)
        learner = Learner(backend, config, config.directory / "offline", world)
        done = train_file(path, learner, settings, told)
    finally:
        world.close()
    if not world.leads:
        return
    for reason, count in done.left_out.most_common():
        say(f"left out {count}: {reason}")
    say(f"{done.steps} steps; the version is in {done.written.uri}")


def export(lineage: str, out: Path | None) -> None:
    """Write every sample of a lineage as lines of JSON, or as Parquet by the file's name.

    A line is `trainer.exported.Line`; a row of a table has the same fields, the values of tokens
    packed (`_PACKED`), and teaching and kept ids as JSON.
    """
    from gateway.config import Settings
    from gateway.store.export import Exports
    from trainer.exported import to_line

    settings = load(Settings)

    async def write(database: Database) -> int:
        found = await _lineage(database, lineage)

        async def lines() -> AsyncIterator[Line]:
            async for one in Exports(database).samples(found.id):
                yield to_line(one.sample, one.state, one.reason)

        if out is not None and out.suffix == ".parquet":
            return await _parquet(lines(), out)
        return await _json(lines(), out)

    count = _on_database(settings, write)
    say(f"{count} samples written")


async def _json(lines: AsyncIterator[Line], out: Path | None) -> int:
    from trainer.exported import encode

    count = 0
    async with AsyncExitStack() as stack:
        file = sys.stdout.buffer if out is None else stack.enter_context(out.open("wb"))
        async for line in lines:
            file.write(encode(line))
            count += 1
        file.flush()
    return count


async def _parquet(lines: AsyncIterator[Line], out: Path) -> int:
    """Rows of `_COLUMNS`, in groups of bounded size."""
    writer = ParquetWriter(_COLUMNS)
    count, size, rows = 0, 0, list[dict[str, Any]]()
    with out.open("wb") as file:
        file.write(writer.begin())
        async for line in lines:
            rows.append(_row(line))
            count += 1
            size += len(line.ids)
            if len(rows) >= _GROUP_ROWS or size >= _GROUP_TOKENS:
                file.write(writer.group(rows))
                rows.clear()
                size = 0
        if rows:
            file.write(writer.group(rows))
        file.write(writer.end())
    return count


def _row(line: Line) -> dict[str, Any]:
    row: dict[str, Any] = {name: getattr(line, name) for name in line.__struct_fields__}
    for column in _COLUMNS:
        value = row[column.name]
        if column.kind is Kind.TEXT and value is not None:
            row[column.name] = str(value)
        elif column.kind is Kind.JSON and value is not None:
            row[column.name] = msgspec.json.encode(value)
    for name, code in _PACKED.items():
        row[name] = struct.pack(f"<{len(row[name])}{code}", *row[name])
    return row


def _model(settings: TrainerSettings) -> Path:
    """The base model: the configured one, else the stack's."""
    from gateway.local.model import ensure_model

    configured = settings.trainer.model_path or settings.model.path
    return ensure_model(configured or local_settings().local.model)


def _vocabulary(model: Path) -> int:
    """The ids that a model knows. Raises ConfigError where its configuration does not say."""
    from gateway.records import text_config

    found = json.loads((model / "config.json").read_text())
    size = text_config(found).get("vocab_size")
    if not isinstance(size, int):
        raise ConfigError(f"{model}/config.json does not say how large the vocabulary is")
    return size


async def _lineage(database: Database, name: str) -> Lineage:
    from gateway.store.lineages import LineageStore

    found = await LineageStore(database).named(name)
    if found is None:
        raise NotFound(f"there is no lineage {name!r}")
    return found


def _on_database(settings: Any, work: Callable[[Database], Awaitable[T]]) -> T:
    """Do something on the configured database, or the stack's where none is configured."""
    from gateway.local.access import database_url
    from gateway.store.database import Database

    async def run() -> T:
        url = database_url(local_settings())
        database = await Database.open(settings.database, url, application="nextstate-learning")
        try:
            await database.check_revision(newest=True)
            return await work(database)
        finally:
            await database.close()

    return asyncio.run(run())
