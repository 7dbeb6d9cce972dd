"""Versions on disk: written aside, synced, checksummed, then renamed into place.

`<root>/<lineage>/v7-<unique>/` holds two directories, each with a manifest of its own: `policy`,
as engines load it, and `state`, what a trainer needs besides to go on. A directory that Postgres
does not name is the rest of a crash; it is never loaded, and pruned later.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import uuid
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from gateway.errors import CheckpointCorrupt
from gateway.records import PolicyRef
from trainer.distributed import World

MANIFEST = "manifest.json"
_VERSION = re.compile(r"v(\d+)-[0-9a-f]{8}")

#: Writes into a directory; where it goes on in the background, what it returns waits for the end.
Writer = Callable[[Path], object]


@dataclass(frozen=True, slots=True)
class Written:
    """A finished version. `uri` and `checksum` name the policy; `state` is `path#checksum`."""

    uri: str
    checksum: str
    state: str


def write_version(
    root: Path, version: int, policy: Writer, state: Writer, world: World | None = None
) -> Written:
    """Write a version below `root`; it appears there whole or not at all. Raises OSError.

    All ranks of a world write into the same directory, which all of them see; rank 0 makes it,
    seals it and gives it its name. What is written in the background goes on meanwhile.
    """
    world = world or World.alone()
    name = world.share(f"v{version}-{uuid.uuid4().hex[:8]}")
    aside, final = root / f".{name}", root / name
    parts = (("state", state), ("policy", policy))
    waits: list[Callable[[], object]] = []
    try:
        with world.together():
            if world.leads:
                for part, _ in parts:
                    (aside / part).mkdir(parents=True)
        checksums: dict[str, str] = {}
        for part, write in parts:
            if callable(wait := write(aside / part)):
                waits.append(wait)
        with world.together():
            for wait in waits:
                wait()
        with world.together():
            if world.leads:
                for part in ("policy", "state"):
                    checksums[part] = _seal(aside / part)
                _sync(aside)
                aside.rename(final)
                _sync(root)
    except BaseException:
        _give_up(aside, waits, world)
        raise
    checksums = world.share(checksums)
    where = final.resolve()
    return Written(
        str(where / "policy"), checksums["policy"], f"{where / 'state'}#{checksums['state']}"
    )


def verify(uri: str, checksum: str) -> Path:
    """The directory, once every file in it is the one that was written.

    `checksum` is the SHA-256 of the manifest, which holds those of the files. Raises
    CheckpointCorrupt that names what differs.
    """
    directory = Path(uri)
    try:
        manifest = (directory / MANIFEST).read_bytes()
        if hashlib.sha256(manifest).hexdigest() != checksum:
            raise CheckpointCorrupt(f"{uri}: the manifest is not the one that was published")
        expected: dict[str, str] = json.loads(manifest)
        found = {path.name for path in directory.iterdir()} - {MANIFEST}
        if found != set(expected):
            raise CheckpointCorrupt(f"{uri}: files are missing or were added")
        for name, digest in expected.items():
            if _digest(directory / name) != digest:
                raise CheckpointCorrupt(f"{uri}: {name} has changed")
    except OSError as error:
        raise CheckpointCorrupt(f"{uri} cannot be read: {error.strerror}") from error
    return directory


def checked(policy: PolicyRef) -> Path:
    """`verify` of a version that Postgres names."""
    return verify(policy.uri or "", policy.checksum or "")


def verify_state(state: str) -> Path:
    """The same for `Written.state`."""
    path, _, checksum = state.rpartition("#")
    return verify(path, checksum)


def prune(root: Path, *, named: Collection[str], keep: int) -> list[int]:
    """Delete all but the `keep` newest versions and those `named` (uris); what was deleted.

    Directories left half written by a crash go too, so only the leader may call this.
    """
    if not root.is_dir():
        return []
    for rest in root.glob(".v*"):
        shutil.rmtree(rest)
    versions = sorted(
        (int(match[1]), path)
        for path in root.iterdir()
        if (match := _VERSION.fullmatch(path.name)) and path.is_dir()
    )
    kept = {Path(uri).parent for uri in named}
    deleted = []
    for version, path in versions[:-keep]:
        if path.resolve() not in kept:
            shutil.rmtree(path)
            deleted.append(version)
    return deleted


def _give_up(aside: Path, waits: Sequence[Callable[[], object]], world: World) -> None:
    """Leave nothing of a version; what still writes would be in the way of the next one."""
    if not world.broken:
        for wait in waits:
            with contextlib.suppress(OSError):
                wait()
    if world.leads:
        shutil.rmtree(aside, ignore_errors=True)


def _seal(directory: Path) -> str:
    """Write the manifest, sync everything, and return the manifest's SHA-256."""
    digests = {path.name: _digest(path) for path in sorted(directory.iterdir())}
    manifest = json.dumps(digests, indent=1).encode()
    (directory / MANIFEST).write_bytes(manifest)
    for path in directory.iterdir():
        _sync(path)
    _sync(directory)
    return hashlib.sha256(manifest).hexdigest()


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
