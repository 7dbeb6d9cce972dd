"""Every rule and reason that a turn can carry has words."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.classify import markers
from gateway.cli.reasons import branched, classified, resolved
from gateway.resolve import rules

GATEWAY = Path(__file__).resolve().parents[2] / "gateway"


def nodes(*packages: str) -> Iterator[ast.AST]:
    for package in packages:
        for path in sorted((GATEWAY / package).rglob("*.py")):
            yield from ast.walk(ast.parse(path.read_text()))


def strings(node: ast.AST | None) -> set[str]:
    """What an expression may be: of a choice, either side."""
    match node:
        case ast.Constant(value=str() as text):
            return {text}
        case ast.IfExp(body=one, orelse=other):
            return strings(one) | strings(other)
        case ast.Name(id=name) if isinstance(getattr(markers, name, None), str):
            return {getattr(markers, name)}
    return set()


def kinds() -> set[str]:
    found = {phrase.marker for phrase in markers._PHRASES}
    for node in nodes("classify", "pipeline"):
        match node:
            case ast.Call(func=ast.Name(id="Kind"), args=[_, rule, _]):
                found |= strings(rule)
    stored = "".join(path.read_text() for path in sorted((GATEWAY / "store").glob("*.py")))
    return found | set(re.findall(r"SET kind = '\w+', kind_rule = '(\w+)'", stored))


def branches() -> set[str]:
    found: set[str] = set()
    for node in nodes("resolve", "tokens"):
        match node:
            case ast.keyword(arg="branch_reason" | "reason", value=value):
                found |= strings(value)
            case ast.FunctionDef(name="_branch_reason"):
                returned = [each for each in ast.walk(node) if isinstance(each, ast.Return)]
                found = found.union(*(strings(each.value) for each in returned))
    return found


def resolutions() -> set[str]:
    ranks = {rank.name.lower() for rank in rules._Rank}
    told: set[str] = set()
    for node in nodes("resolve"):
        match node:
            case ast.keyword(arg="rule", value=value):
                told |= strings(value)
            case ast.Assign(targets=[ast.Name(id="rule")], value=value):
                told |= strings(value)
    return told | ranks | {f"named_{rank}_branch" for rank in ranks}


@pytest.mark.parametrize("rule", sorted(kinds()))
def test_every_kind_is_told_in_words(rule: str) -> None:
    assert " " in classified(rule)


@pytest.mark.parametrize("reason", sorted(branches()))
def test_every_branch_is_told_in_words(reason: str) -> None:
    assert " " in (branched(reason) or "")


@pytest.mark.parametrize("rule", sorted(resolutions()))
def test_every_place_is_told_in_words(rule: str) -> None:
    words = resolved(rule)
    assert not words.startswith(rule)
    assert " " in words.removeprefix("in the session that the client names: ")
    assert "_" not in words


def test_the_rules_are_found() -> None:
    assert {"declared", "extends_chain", "promoted_when_extended", "title"} <= kinds()
    assert {"tools_changed", "template_dropped_reasoning", "history_edited"} <= branches()
    assert {"new", "called", "prefix", "named_fork", "retry"} <= resolutions()
