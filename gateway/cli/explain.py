"""`nextstate explain`: why each turn of a session is what it is."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from gateway.cli.database import on_database
from gateway.cli.reasons import in_words, resolved
from gateway.errors import NotFound

Found = dict[str, Any]


def explain(
    session: Annotated[
        str, typer.Argument(help="Its id, the id of one of its turns, or its client's name for it.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Show why each turn of a session is what it is: session, parent, kind, branch."""
    from gateway.store.explain import explained

    found = on_database(
        lambda database: explained(database, session), application="nextstate-explain"
    )
    if not found:
        raise NotFound(f"there is no session {session!r}")
    for each in found:
        for turn in each["turns"]:
            turn["why"] = in_words(turn)
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(found), indent=2))
    else:
        Console().print(*map(screen, found), sep="\n\n")


def screen(session: Found) -> Group:
    """One session as people read it."""
    lines = [Text(f"session {session['id']}", style="bold")]
    facts = {
        "client's name": session["external_id"],
        "tenant": session["tenant"],
        "client": session["client"],
        "opened": resolved(session["resolved_by"]),
        "forked or called from": session["parent_session_id"],
        "status": f"{session['status']} {session['end_reason'] or ''}".strip(),
    }
    lines += [Text(f"{name}: {value}") for name, value in facts.items() if value]
    if session["ambiguous"]:
        lines.append(Text("ambiguous: equal conversations matched when it began", style="yellow"))
    table = Table("turn", "after", "kind", "sure", "next", "ids", "why", "then")
    for turn in session["turns"]:
        table.add_row(*map(_cell, _row(turn)))
    return Group(*lines, table)


def _row(turn: Found) -> tuple[object, ...]:
    why = "\n".join(f"{name}: {words}" for name, words in turn["why"].items())
    end = turn["outcome"] and f"{turn['outcome']}: {turn['reason']}"
    return (
        turn["number"],
        turn["parent"],
        turn["kind"],
        f"{turn['confidence']:.2f}",
        turn["next_role"],
        f"{turn['shared_len']} of {turn['prompt_len']}",
        why,
        end or turn["untrainable_reason"],
    )


def _cell(value: object) -> Text:
    return Text("-" if value is None else str(value))
