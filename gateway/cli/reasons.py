"""What the names of rules and reasons mean, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_RESOLVED = {
    "new": "nothing stored ends a prefix of it: a new session",
    "named": "the client names the session; nothing in it is continued",
    "named_fork": "a new name for a history that is stored under another session",
    "called": "its user message is the task that an unanswered tool call gave to an agent",
    "retry": "asked again: in the place of the first attempt",
    "ambiguous_prefix": "equal conversations match and all went on: a new session",
    "prefix": "the deepest stored prefix of its messages",
    "echo": "a tool-call id that was minted here came back",
    "summary": "it opens with the summary of a session",
    "quotes": "it quotes what another session said",
    "outline": "the same first message and replies; formatting or other messages differ",
    "reply": "its last exchange, which one conversation alone has",
    "previous": "the client names the turn that it continues",
}

_KINDS = {
    "declared": "the client says so",
    "trainable_pattern": "matches trainable_patterns",
    "auxiliary_pattern": "matches auxiliary_patterns",
    "subagent": "a sub-agent's call",
    "compaction": "asks for the summary that takes the history's place",
    "title": "asks for a title",
    "about_session": "asks about a session that it quotes",
    "commit_message": "asks for a commit message",
    "tags": "asks for tags",
    "follow_ups": "asks for what the user may say next",
    "search_queries": "asks for search queries",
    "autocomplete": "asks for the end of what the user types",
    "image_prompt": "asks for the prompt of an image",
    "extends_side": "goes on from a side call",
    "nothing_new": "adds nothing to its parent",
    "extends_without_tools": "goes on, but without the tools: held until extended",
    "extends_chain": "goes on from its parent",
    "asked_beside_before": "was asked beside a conversation before: held until extended",
    "beside_line": "stands beside the turn that the conversation went on with",
    "one_shot_over_history": "wants a reply of another form or size: held until extended",
    "one_shot_beside_tools": "a single question in a session that works with tools",
    "one_shot_with_schema": "a single question with a schema for the answer",
    "one_shot_without_tools": "this agent's main line always has tools",
    "first_turn": "a first turn: held until extended",
    "promoted_when_extended": "was held, and a later request extended it",
}

_BRANCHES = {
    "history_edited": "messages before the reply are not those that the parent saw",
    "parent_truncated": "the parent's reply was cut off",
    "system_changed": "the system prompt changed",
    "tools_changed": "the tools changed",
    "forked": "a copy of another session's history",
    "compacted": "the history was replaced by a summary",
    "new_root": "starts over inside its session",
    "ambiguous": "nothing tells equal conversations apart",
    "parent_ids_missing": "the parent's ids are not stored",
    "media_marks_differ": "what was sampled holds a mark that stands for an image or audio",
    "template_dropped_reasoning": "the chat template drops earlier reasoning",
    "template_not_append_only": "the chat template writes earlier messages in another way now",
    "parent_not_closed": "a stop string ended the parent's reply",
    "nothing_new": "adds nothing to its parent",
    "no_token_ids": "its engine gives text alone",
}


_INCOMPLETE = {
    "content_filter": "a filter cut it: not scored as complete",
    "refusal": "its model refused: not scored as complete",
    "length": "a limit cut it: not scored as complete",
    "abort": "it was given up: not scored as complete",
}


def resolved(rule: str) -> str:
    """Why a request is in its session, and after its parent."""
    plain = rule.removeprefix("named_") if rule not in _RESOLVED else rule
    branch = plain.endswith("_branch")
    words = _RESOLVED.get(plain.removesuffix("_branch"), rule)
    if plain != rule:
        words = f"in the session that the client names: {words}"
    return f"{words}, which went on before: a branch" if branch else words


def classified(rule: str) -> str:
    """Why a turn is main line, side call or unknown."""
    return _KINDS.get(rule, rule)


def branched(reason: str | None) -> str | None:
    """Why the parent's ids were not extended as they are."""
    return None if reason is None else _BRANCHES.get(reason, reason)


def in_words(turn: Mapping[str, Any]) -> dict[str, str]:
    """The decisions of one turn; what needs no word is left out."""
    words = {"session": resolved(turn["resolve_rule"]), "kind": classified(turn["kind_rule"])}
    if branch := branched(turn["branch_reason"]):
        words["branch"] = branch
    if turn["retry_of"] is not None:
        words["retry"] = f"a retry of {turn['retry_of']}"
    if turn["next_how"] == "rolled_back":
        words["rollback"] = "its user went back behind it and said something else"
    if end := _INCOMPLETE.get(turn["finish_detail"]) or _INCOMPLETE.get(turn["finish_reason"]):
        words["reply"] = end
    if not turn["delivered"]:
        words["delivery"] = "the client left before the end"
    return words
