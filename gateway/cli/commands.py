"""The commands. Each imports what it runs, so that none pays for another's libraries.

Errors of the project's tree end here: one line on standard error and exit code 1.
"""

from __future__ import annotations

import asyncio
import json
import sys
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.console import Console

from gateway.cli import config, engine, erase, explain, keys, policy, retention
from gateway.cli.database import on_database
from gateway.cli.doctor import doctor
from gateway.cli.terminal import fail, local_settings, logs_aside, progress, say
from gateway.config import Settings, load
from gateway.errors import NextstateError

if TYPE_CHECKING:
    from gateway.cli.replay import Wanted
    from gateway.local.config import LocalSettings
    from gateway.local.stack import Stack

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="A gateway whose agents learn from what happens next.",
)
app.add_typer(keys.app, name="keys")
app.add_typer(config.app, name="config")
app.add_typer(policy.app, name="policy")
app.add_typer(engine.app, name="engine")
app.add_typer(erase.app, name="erase")
app.add_typer(retention.app, name="retention")
app.command("explain")(explain.explain)
app.command("doctor")(doctor)


@app.callback()
def _prepared() -> None:
    logs_aside()


def main() -> None:
    """Run a command; the process exits with its code."""
    try:
        app()
    except NextstateError as error:
        fail(error.message)
    except OSError as error:
        fail(str(error))


@app.command()
def up(
    foreground: Annotated[bool, typer.Option(help="Stay in front until Ctrl-C.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Address and key, for programs.")] = False,
) -> None:
    """Start the stack; prints what an agent needs as shell exports."""
    from gateway.local import launch
    from gateway.local.setup import setup as prepare

    settings = local_settings()
    if foreground:
        prepare(settings, say)
        _foreground(settings, as_json=as_json)
        return
    with progress() as tell:
        prepare(settings, tell)
        found = launch.up(settings, say=tell)
    _exports(settings, found.url, as_json=as_json)


@app.command()
def down(
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Stop the stack."""
    from gateway.local import launch

    settings = local_settings()
    with progress() as tell:
        stopped = launch.down(settings, say=tell)
    say("stopped" if stopped else f"no stack runs in {settings.home}")
    if as_json:
        typer.echo(json.dumps({"stopped": stopped, "home": str(settings.home)}))


@app.command()
def status(
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """What is served, captured, judged and trained, and why something is not."""
    from gateway.local.summary import summary

    found = asyncio.run(summary(local_settings()))
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(found), indent=2))
    else:
        from gateway.local.screen import screen

        Console().print(screen(found))


@app.command()
def setup() -> None:
    """Install the engine and convert the default model, once."""
    from gateway.local.setup import setup as prepare

    with progress() as tell:
        prepare(local_settings(), tell)


@app.command()
def serve() -> None:
    """Run the gateway."""
    from gateway.app import serve as run

    run(load(Settings))


@app.command()
def judge(
    *,
    session: Annotated[
        str | None,
        typer.Option("--replay", metavar="SESSION", help="Judge it again; show changes."),
    ] = None,
    since: Annotated[
        str | None, typer.Option(help="Judge again what was served since: 2h, 3d, a date.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Another model of the LLM judge.")] = None,
    guidance: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="Another prompt's guidance.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Turns judged again at most.")] = 1000,
    as_json: Annotated[bool, typer.Option("--json", help="The difference, for programs.")] = False,
) -> None:
    """Run a judge, or judge again and compare; a comparison stores nothing."""
    from gateway.cli.replay import wanted

    ask = wanted(session, since, limit=limit, model=model, guidance=guidance)
    if ask is not None:
        _replay(ask, as_json=as_json)
        return
    from judge.config import JudgeSettings
    from judge.worker import main as run

    run(load(JudgeSettings))


@app.command()
def train(
    dry_run: Annotated[
        bool, typer.Option(help="Only print what would be trained, and why the rest would not.")
    ] = False,
    offline: Annotated[
        Path | None, typer.Option(help="Train on an export, without database or engine.")
    ] = None,
    full: Annotated[
        bool, typer.Option("--full", help="Offline: all weights instead of an adapter.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The dry run, for programs.")] = False,
) -> None:
    """Run the trainer."""
    if full and offline is None:
        raise typer.BadParameter("--full goes with --offline: elsewhere the lineage says it")
    if dry_run or offline is not None:
        from gateway.cli import learning

        if dry_run:
            learning.dry_run(as_json=as_json)
        else:
            assert offline is not None
            learning.offline(offline, full=full)
        return
    from trainer.config import TrainerSettings
    from trainer.service import main as run

    run(load(TrainerSettings))


@app.command()
def export(
    out: Annotated[
        Path | None, typer.Argument(help="A .jsonl or .parquet file; default: standard output.")
    ] = None,
    lineage: Annotated[str, typer.Option(help="Whose samples.")] = "default",
) -> None:
    """Write samples: ids, masks, log-probabilities, versions, scores."""
    from gateway.cli import learning

    learning.export(lineage, out)


@app.command()
def demo(
    quick: Annotated[bool, typer.Option(help="Only whether the loop closes.")] = False,
    out: Annotated[Path, typer.Option(help="Where report and picture go.")] = Path("build/demo"),
) -> None:
    """Run the stack with simulated users, and show it learn."""
    from gateway.demo import run
    from gateway.local.setup import setup as prepare

    with progress() as tell:
        prepare(local_settings(), tell)
    raise typer.Exit(run(quick=quick, out=out))


@app.command()
def migrate(
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Bring the database's schema to this build's revision.

    Where NEXTSTATE_ADMIN_KEY or NEXTSTATE_ADMIN_KEY_FILE gives a secret, it is made an admin key.
    """
    from gateway.cli import first_key
    from gateway.local.access import database_url
    from gateway.store.database import REVISIONS
    from gateway.store.database import migrate as run

    settings, secret = local_settings(), first_key.wanted()
    asyncio.run(run(database_url(settings)))
    made = None
    if secret is not None:
        made = on_database(
            lambda database: first_key.ensure(settings, database, secret),
            application="nextstate-migrate",
        )
    if as_json:
        typer.echo(json.dumps({"revision": REVISIONS[-1], "admin_key": made}))
        return
    say(f"the schema is at revision {REVISIONS[-1]}")
    if made is not None:
        say(f"the admin key of the environment is {made}")


@app.command()
def logs(
    name: Annotated[str | None, typer.Argument(help="One process; default: all.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until Ctrl-C.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="Of each log.")] = 40,
) -> None:
    """Show what the stack's processes have written."""
    from gateway.local.logs import show

    show(local_settings().home / "logs", name, lines=lines, follow=follow, out=sys.stdout)


@app.command()
def version(
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Print the version."""
    found = installed_version("nextstate")
    typer.echo(json.dumps({"version": found}) if as_json else found)


def _replay(ask: Wanted, *, as_json: bool) -> None:
    from gateway.cli import replay
    from judge.replay import difference

    replayed = asyncio.run(replay.run(local_settings(), ask))
    found = difference(replayed)
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(found), indent=2))
        return
    if found["changed"] or found["failed"]:
        Console().print(replay.table(replayed))
    typer.echo(replay.summary(found))


def _foreground(settings: LocalSettings, *, as_json: bool) -> None:
    from gateway.local import launch
    from gateway.telemetry import configure_logging

    configure_logging(settings.log, "stack", sys.stderr)

    async def wait(stack: Stack) -> None:
        _exports(settings, stack.url, as_json=as_json)
        await asyncio.Event().wait()

    asyncio.run(launch.run(settings, wait, say=say))


def _exports(settings: LocalSettings, url: str, *, as_json: bool) -> None:
    """Lines for `eval`, alone on standard output."""
    from gateway.local.keys import read_key

    if as_json:
        found = {"base_url": f"{url}/v1", "api_key": read_key(settings.home), "url": url}
        typer.echo(json.dumps(found))
        return
    typer.echo(f"export OPENAI_BASE_URL={url}/v1")
    typer.echo(f"export OPENAI_API_KEY={read_key(settings.home)}")
    typer.echo(f"# status: nextstate status, {url}/readyz")
