"""Command lines for children that must not outlive the process that started them.

The kernel sends a child its parent-death signal when the *thread* that started it ends, so start
tethered children from a thread that lives as long as they should.
"""

from __future__ import annotations

import os
import pwd
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from gateway.errors import StackError

#: A parent that dies before the signal is armed leaves a child with another parent: it gives up.
_ONLY_UNDER = 'test "$PPID" = "$0" || exit 125; exec "$@"'

_CAPABILITY = "-all,+dac_override"


def tethered(argv: Sequence[str], *, signal: Literal["INT", "TERM", "KILL"]) -> list[str]:
    """`argv`, sent `signal` as soon as the process that calls this is gone."""
    return ["setpriv", "--pdeathsig", signal, "sh", "-c", _ONLY_UNDER, str(os.getpid()), *argv]


class Account:
    """Who a server that refuses to run as root runs as: a command prefix and the owner of files.

    `uid` and `gid` are those that its files must have, as seen from outside.
    """

    def __init__(self, prefix: Sequence[str], uid: int, gid: int) -> None:
        self.prefix = list(prefix)
        self.uid = uid
        self.gid = gid

    def can_use(self, program: Path, directory: Path) -> bool:
        """Whether `program` can be run and `directory` be written by this account."""
        check = ["sh", "-c", 'test -x "$0" && test -w "$1" && test -x "$1"']
        done = subprocess.run(
            [*self.prefix, *check, str(program), str(directory)],
            check=False,
            capture_output=True,
            timeout=30,
        )
        return done.returncode == 0


def candidates() -> list[Account]:
    """Accounts to try, the plainest first; initdb wants one that has a name."""
    uid, gid = os.geteuid(), os.getegid()
    named = {entry.pw_name: entry.pw_uid for entry in pwd.getpwall() if entry.pw_uid != 0}
    if uid in named.values():
        return [Account([], uid, gid)]
    inside = named.get("nobody") or next(iter(named.values()), 1)
    mapped = ["unshare", "--user", f"--map-user={inside}", f"--map-group={inside}"]
    found = [Account(mapped, uid, gid)]
    if uid != 0:
        return found
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        # Containers that forbid user namespaces still allow this. The capability reaches a
        # checkout below a private home, as the mapped root above does.
        other = [
            "setpriv",
            f"--reuid={entry.pw_uid}",
            f"--regid={entry.pw_gid}",
            "--clear-groups",
            f"--inh-caps={_CAPABILITY}",
            f"--ambient-caps={_CAPABILITY}",
            f"--bounding-set={_CAPABILITY}",
        ]
        found.append(Account(other, entry.pw_uid, entry.pw_gid))
    return found


def unprivileged(program: Path, directory: Path) -> Account:
    """The first account that can run `program` on `directory`.

    Raises StackError where there is none.
    """
    for account in candidates():
        if account.can_use(program, directory):
            return account
    raise StackError(
        f"{program.name} does not run as root, and no other account can use {directory}; "
        "run as an ordinary user, or set DATABASE_URL to a PostgreSQL server of your own"
    )
