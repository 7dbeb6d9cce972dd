"""The summary of a stack as tables."""

from __future__ import annotations

import time
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gateway.local.summary import age

Found = dict[str, Any]


def screen(found: Found) -> RenderableType:
    """Processes, engines, what became of the turns, the lineages, and what is amiss."""
    parts: list[RenderableType] = []
    if found["stack"] is not None:
        parts.append(_processes(found["stack"]))
    if found["gateway"] is not None:
        parts.append(_engines(found["gateway"]))
    if found["funnel"] is not None:
        store = found["store"]
        parts += [_funnel(found["funnel"]), _lineages(store["lineages"])]
        parts.append(_workers(store["workers"], found))
    parts += [Text(f"• {note}", style="yellow") for note in found["notes"]]
    return Group(*parts)


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _processes(stack: Found) -> Table:
    table = _table(
        f"Stack: {stack['phase']}, started {age(stack['started_at'])}",
        "process", "state", "pid", "restarts", "last end",
    )  # fmt: skip
    for name, process in stack["processes"].items():
        colour = "green" if process["state"] == "ready" else "yellow"
        reason = str(process["reason"] or "").split("\n", 1)[0]
        cells = (Text(process["state"], style=colour), str(process["pid"] or ""))
        table.add_row(name, *cells, str(process["restarts"]), Text(reason))
    return table


def _engines(gateway: Found) -> Table:
    title = f"Serving {gateway.get('model', '')}: {gateway['status']}"
    table = _table(title, "engine", "state", "running", "queued", "versions")
    for engine in gateway.get("engines", []):
        healthy = engine.get("healthy")
        if engine.get("draining"):
            state = Text(f"draining, {engine.get('requests', 0)} left", style="yellow")
        else:
            state = Text(
                "ready" if healthy else str(engine.get("error") or "not ready"),
                style="green" if healthy else "red",
            )
        versions = ", ".join(f"v{version}" for version in engine.get("serving", {}).values())
        counts = (str(engine.get("running", "")), str(engine.get("queued", "")))
        table.add_row(Text(str(engine.get("name", ""))), state, *counts, versions)
    return table


def _funnel(funnel: Found) -> Table:
    table = _table("Turns", "step", "turns", "of the rest")
    samples = funnel["samples"]
    table.add_row("captured", str(funnel["turns"]))
    table.add_row(
        "main line", str(funnel["main"]), f"{funnel['side']} side, {funnel['unknown']} unknown"
    )
    table.add_row("trainable", str(funnel["trainable"]), _reasons(funnel["untrainable"]))
    table.add_row("with a next state", str(funnel["with_next_state"]))
    table.add_row("scored", str(funnel["scored"]), _reasons(funnel["unscored"]))
    table.add_row("waiting to be judged", str(funnel["judging"]))
    table.add_row("samples ready", str(samples["ready"]), f"{samples['leased']} in training")
    table.add_row("trained", str(funnel["trained"]), _reasons(funnel["dropped"]))
    return table


def _reasons(reasons: dict[str, int]) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in reasons.items())


def _lineages(lineages: list[Found]) -> Table:
    table = _table("Policies", "lineage", "base", "live", "steps", "last step", "ready")
    for one in lineages:
        table.add_row(
            Text(one["name"]),
            Text(one["base_model"]),
            f"v{one['live_version']}",
            str(one["steps"]),
            age(one["last_step_at"]),
            str(one["ready"]),
        )
    return table


def _workers(workers: list[Found], found: Found) -> Table:
    title = f"Processes of version {found['version']}, schema {found['schema']}"
    table = _table(title, "kind", "host", "pid", "runs on", "started", "heard of")
    for one in workers:
        where = (Text(one["kind"]), Text(one["host"]), str(one["pid"]))
        ages = (age(one["started_at"]), age(one["heartbeat_at"]))
        table.add_row(*where, Text(one["revision"]), *ages)
    return table


def keys_table(keys: list[Found]) -> Table:
    """API keys, those that are refused dimmed."""
    table = _table("Keys", "id", "name", "role", "tenant", "lineage", "secret", "made", "state")
    for key in keys:
        revoked, expires = key["revoked_at"], key["expires_at"]
        expired = expires is not None and expires <= time.time()
        state = "revoked" if revoked else "expired" if expired else "valid"
        cells = [str(key["id"]), key["name"], key["role"], key["tenant"], key["lineage"]]
        shown = [Text(cell) for cell in (*cells, f"{key['hint']}…")]
        table.add_row(
            *shown, age(key["created_at"]), state, style=None if state == "valid" else "dim"
        )
    return table
