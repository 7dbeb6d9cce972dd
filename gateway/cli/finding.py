"""What the doctor found of one thing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "warning", "wrong"]


@dataclass(frozen=True, slots=True)
class Finding:
    """`mend` says what to do, and is empty where all is well."""

    what: str
    state: State
    said: str
    mend: str = ""


def ok(what: str, said: str) -> Finding:
    return Finding(what, "ok", said)


def warning(what: str, said: str, mend: str) -> Finding:
    return Finding(what, "warning", said, mend)


def wrong(what: str, said: str, mend: str) -> Finding:
    return Finding(what, "wrong", said, mend)
