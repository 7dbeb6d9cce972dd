"""What is served, captured, judged and trained now, and why something is not."""

from __future__ import annotations

import dataclasses
import time
from importlib.metadata import version
from typing import Any

import aiohttp
import msgspec

from gateway.errors import StoreError
from gateway.local import access, state
from gateway.local.config import LocalSettings
from gateway.store.admin import AdminReads
from gateway.store.database import Database
from gateway.store.pauses import Paused, Pauses, PauseStore

Found = dict[str, Any]


async def summary(settings: LocalSettings) -> Found:
    """`{"version", "stack", "gateway", "store", "funnel", "schema", "paused", "notes"}` for JSON.

    A part that does not answer is None and has a note. Raises StackError where there is neither a
    stack nor a database to ask.
    """
    stack = state.running(settings.home)
    url = stack.url if stack and stack.url else _configured_url(settings)
    found: Found = {
        "version": version("nextstate"),
        "stack": dataclasses.asdict(stack) if stack else None,
        "url": url,
        "gateway": await _readiness(url),
        "store": None,
        "funnel": None,
        "schema": None,
        "paused": [],
    }
    trouble = None
    if stack is None or stack.phase == "ready" or "postgres" in stack.processes:
        try:
            found |= await _stored(settings)
        except StoreError as error:
            trouble = error.message
    found["notes"] = notes(found, settings, trouble)
    return found


def notes(found: Found, settings: LocalSettings, trouble: str | None = None) -> list[str]:
    """Sentences on whatever keeps turns from being served, judged or trained."""
    said = [*_processes(found["stack"]), *_serving(found["gateway"], found["url"])]
    if trouble:
        said.append(f"the database cannot be read: {trouble}")
    if found["store"] is not None:
        said += _learning(found["store"], found["funnel"], settings)
        said += [
            f"{one['what']} is paused for {one['subject']}: {one['reason'] or 'no reason told'}"
            for one in found["paused"]
        ]
    return said


def _processes(stack: Found | None) -> list[str]:
    if stack is None:
        return []
    said = [f"the stack is {stack['phase']}: {stack['step']}"] if stack["phase"] != "ready" else []
    for name, process in stack["processes"].items():
        if process["state"] == "waiting":
            reason = str(process["reason"]).splitlines()[0]
            said.append(f"{name} has ended ({reason}) and is started again")
    return said


def _serving(gateway: Found | None, url: str) -> list[str]:
    if gateway is None:
        return [f"nothing is served: the gateway at {url} does not answer"]
    said = []
    if gateway["status"] == "draining":
        said.append("the gateway is about to end: it serves on, and is not ready")
    elif gateway["status"] != "ready":
        said.append("nothing is served: no engine is ready")
    said += [
        f"{engine['name']} drains: it gets no new request, and {engine['requests']} of this "
        "gateway's still run on it"
        for engine in gateway.get("engines", ())
        if engine.get("draining")
    ]
    if gateway.get("spooling"):
        said.append("Postgres is away from the gateway: turns wait in its spool")
    return said


def _learning(store: Found, funnel: Found, settings: LocalSettings) -> list[str]:
    said = []
    alive = {worker["kind"] for worker in store["workers"]}
    if not funnel["turns"]:
        said.append("nothing is captured: no turn has been served to a key that captures")
    elif not funnel["main"]:
        said.append("nothing is judged: no turn is of a main line")
    elif not funnel["with_next_state"]:
        said.append("nothing is judged: no reply has been followed by another message")
    if "judge" not in alive:
        waiting = store["jobs"]["queued"] + store["jobs"]["leased"]
        said.append(f"no judge is alive; {waiting} turns wait for one")
    alarms = {name for one in store["workers"] for name in one["detail"].get("alarms", ())}
    if alarms:
        said.append(f"judging needs a look: {', '.join(sorted(alarms))}")
    for lineage in store["lineages"]:
        said += _training(lineage, "trainer" in alive, settings)
    said += _untrained(funnel)
    return said


def _training(lineage: Found, trainer: bool, settings: LocalSettings) -> list[str]:
    name, ready = lineage["name"], lineage["ready"]
    if not lineage["trains"]:
        return [f"{name} does not train: it is switched off for this lineage"]
    if not trainer:
        return [f"{name} does not train: no trainer is alive; {ready} samples wait"]
    if not lineage["leased"] and ready < settings.batch:
        return [f"{name} waits for samples: {ready} of {settings.batch} for the next version"]
    return []


def _untrained(funnel: Found) -> list[str]:
    """Why nothing that was scored has been trained on, where that is so."""
    samples = funnel["samples"]
    if funnel["trained"] or samples["ready"] or samples["leased"] or not funnel["scored"]:
        return []
    lost = {**funnel["untrainable"], **funnel["unscored"], **funnel["dropped"]}
    if not lost:
        return []
    most = sorted(lost.items(), key=lambda one: -one[1])[:3]
    told = ", ".join(f"{count} {reason}" for reason, count in most)
    return [f"nothing that was scored can be trained on: {told}"]


async def _stored(settings: LocalSettings) -> Found:
    url = access.database_url(settings)
    database = await Database.open(settings.database, url, application="nextstate-status")
    try:
        reads = AdminReads(database)
        store = await reads.status(None)
        return {
            "store": store,
            "funnel": await reads.funnel(None),
            "schema": database.revision,
            "paused": _paused(await PauseStore(database).read(), store["lineages"]),
        }
    finally:
        await database.close()


def _paused(pauses: Pauses, lineages: list[Found]) -> list[Found]:
    """`{"what", "subject", "since", "reason", "by"}`; a lineage by its name, a tenant by its id."""
    names = {one["id"]: one["name"] for one in lineages}
    return [
        {"what": what.value, "subject": names.get(subject, str(subject)), **entry}
        for what in Paused
        for subject, entry in pauses.of(what).items()
    ]


async def _readiness(url: str) -> Found | None:
    """The gateway's own answer, 503 included; None where it does not answer."""
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as http,
            http.get(f"{url}/readyz") as response,
        ):
            found: Found = msgspec.json.decode(await response.read(), type=dict[str, Any])
    except (aiohttp.ClientError, TimeoutError, msgspec.DecodeError):
        return None
    return found if "status" in found else None


def _configured_url(settings: LocalSettings) -> str:
    return f"http://{settings.gateway.host}:{settings.gateway.port}"


def age(since: float | None) -> str:
    """Seconds since the epoch as `12 s`, `3 min`, `2 h` or `4 d` ago; `never` for None."""
    if since is None:
        return "never"
    passed = max(0.0, time.time() - since)
    for unit, size, limit in (("s", 1, 120), ("min", 60, 7200), ("h", 3600, 172_800)):
        if passed < limit:
            return f"{passed / size:.0f} {unit} ago"
    return f"{passed / 86_400:.0f} d ago"
