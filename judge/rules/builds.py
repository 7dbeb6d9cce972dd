"""Test runners, compilers and shells that say that they failed, where no exit code does.

What a tool merely read (a log, a page) may quote any of these. So a summary counts in the last
lines only, where the program that ran last has its word, and an error of a compiler at the start.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

_EDGE_LINES = 4

#: The last word of a run.
_SUMMARIES = {
    "failing tests": (
        r"=*\s*(?:\d+ \w+, )*[1-9]\d* (?:failed|errors?)\b.{0,120}\bin \d[\d.:]*(?:s|ms| sec)",
        r"=*\s*FAILED \((?:failures|errors)=\d+",
        r"FAILED \S+::\S+",
        r"(?:Tests|Test Suites|Test Files):?\s+[1-9]\d* failed\b",
        r"test result: FAILED\.",
        r"[1-9]\d* failing\b|\d+ examples?, [1-9]\d* failures?\b",
        r"FAIL(?:\t\S+|$)|--- FAIL: \S+",
    ),
    "failed check": (
        r"Found [1-9]\d* errors?(?:\.?$| in (?:\d+ |the same )?files?\b| in \S+:\d+)",
        r"\W*\d+ problems? \([1-9]\d* errors?",
    ),
    "failed build": (
        r"g?make(?:\[\d+\])?: \*\*\* ",
        r"error: could not compile\b|error: aborting due to ",
        r"ninja: build stopped|collect2: error",
        r"\[ERROR\] (?:BUILD FAILURE|Failed to execute goal)|BUILD FAILED\b|BUILD FAILURE\b",
    ),
    "package manager error": (
        r"npm (?:ERR!|error)(?: |$)",
        r"\W{0,3}ERR_PNPM_\w+|error Command failed with exit code \d+",
        r"ERROR: (?:Could not |No matching distribution|Failed building)",
        r"E: (?:Unable to |Package |Could not )",
    ),
    "network error": (r"curl: \(\d+\) ", r"(?:wget|ssh|scp): "),
}

#: How a compiler begins.
_OPENINGS = {
    "compiler error": (
        r"error\[E\d{4}\]: ",
        r"(?:\S+\(\d+,\d+\): |\S+:\d+:\d+ - )?error TS\d+: ",
        r"\S+\.(?:c|cc|cpp|cxx|h|hpp|m|swift|kt|zig):\d+:\d+: (?:fatal )?error: ",
        r"\S+\.java:\d+: error: ",
        r"(?:vet: )?\S+\.go:\d+:\d+: (?:undefined: |cannot |syntax error|missing return|expected )",
        r"\S+\.go:\d+:\d+: (?:not enough arguments|too many arguments|invalid operation)",
        r"\S+\.go:\d+:\d+: (?:\S+ )?(?:declared and not used|imported and not used|redeclared)",
    ),
    "package manager error": (r"npm (?:ERR!|error) ",),
    "failed build": (r"make(?:\[\d+\])?: \*\*\* ",),
    "network error": (r"curl: \(\d+\) ",),
}

#: What stands before the first error.
_PREAMBLE = re.compile(r"# |\s*(?:Compiling|Checking|Building) ")


def _first(line: str, kinds: Mapping[str, tuple[str, ...]]) -> str | None:
    for reason, patterns in kinds.items():
        if any(re.match(pattern, line) for pattern in patterns):
            return reason
    return None


def failure_in(lines: Sequence[str]) -> str | None:
    """Why a run failed, from the stripped lines of its output that are not empty; None if not."""
    shown = [line[:300] for line in lines]
    opening = next((line for line in shown[:_EDGE_LINES] if not _PREAMBLE.match(line)), "")
    if reason := _first(opening, _OPENINGS):
        return reason
    found = (_first(line, _SUMMARIES) for line in reversed(shown[-_EDGE_LINES:]))
    return next(filter(None, found), None)
