"""The renderer for any model with a chat template."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from gateway.records import Message, Trail, holds
from gateway.tokens.append_only import Continuation, prove
from gateway.tokens.call_end import after_last, call_end
from gateway.tokens.marks import marks_of
from gateway.tokens.renderer import Extension, Tools, blocked
from gateway.tokens.template import ChatTemplate
from gateway.tokens.tokenizer import Tokenizer

_PROOFS = 256
#: Llama 3 ends a call that awaits its result with the one, and templates write the other.
_SAME_END = {"<|eom_id|>": "<|eot_id|>"}
_PROBE: Message = {"role": "user", "content": "Ux2"}


class TemplateRenderer:
    """Renders through the model's own template, and extends where that is proven to be exact.

    Extending tokenizes only what is new: the new messages are rendered after the parent's reply
    in a conversation of two messages, and what the template adds there is appended.
    """

    name = "template"

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: ChatTemplate | None = None,
        modalities: Iterable[str] = (),
    ) -> None:
        self._tokenizer = tokenizer
        self._template = template or ChatTemplate(tokenizer.chat_template, tokenizer.special_tokens)
        self.marks = marks_of(self._template, tokenizer, modalities)
        self._thinks = "think" in self._template.source
        self._think_end = tokenizer.id_of("</think>")
        self._proof = lru_cache(maxsize=_PROOFS)(self._prove)
        # Templates that use tools name the variable.
        self.uses_tools = "tools" in self._template.source

    def render(
        self, messages: Sequence[Message], tools: Tools, template_kwargs: Mapping[str, Any]
    ) -> list[int]:
        adapted = self._template.adapt_all(messages)
        return self._tokenizer.encode(
            self._template.render(adapted, tools=tools, generate=True, kwargs=template_kwargs)
        )

    def extend(
        self,
        trail: Trail,
        new_messages: Sequence[Message],
        messages: Sequence[Message],
        tools: Tools,
        template_kwargs: Mapping[str, Any],
    ) -> Extension:
        if reason := blocked(trail, new_messages):
            return Extension(reason=reason)
        before = messages[: len(messages) - len(new_messages)]
        for message in before:
            if message["role"] == "user":
                break
        else:
            # Some templates write tools or the system prompt into the first user message.
            return Extension(reason="template_not_append_only")
        new = [self._template.adapt(message) for message in new_messages]
        proof = self._proof(
            _collapsed([message["role"] for message in new]),
            bool(tools) and self.uses_tools,
            self._holds_reasoning(trail),
            json.dumps(template_kwargs, sort_keys=True) if template_kwargs else "{}",
        )
        if proof.reason:
            return Extension(reason=proof.reason)
        reply = self._template.adapt(before[-1])
        if self._template.one_call and reply.get("tool_calls"):
            # What follows a reply does not depend on how many calls it has, and some templates
            # take one only; the recorded ids hold them all.
            reply["tool_calls"] = reply["tool_calls"][:1]
        used = tools if proof.tools_matter else ()
        closed = self._template.render(
            [_PROBE, reply], tools=used, generate=False, kwargs=template_kwargs
        )
        full = self._template.render(
            [_PROBE, reply, *new], tools=used, generate=True, kwargs=template_kwargs
        )
        if not full.startswith(closed):
            dropped = full.count("</think>") < closed.count("</think>")
            return Extension(
                reason="template_dropped_reasoning" if dropped else "template_not_append_only"
            )
        # The stop token is tokenized along with what follows, since some of them swallow the
        # white space after them; the one that was sampled then stands in for it.
        written = self._tokenizer.encode(proof.close + full[len(closed) :])
        if sampled := self._sampled_of(written, trail.sampled_ids):
            return Extension(trail=trail, added=written[sampled:])
        end = call_end(self._tokenizer, trail.sampled_ids) if reply.get("tool_calls") else None
        rest = None if end is None else after_last(end, closed)
        if rest is None:
            return Extension(reason="parent_not_closed")
        added = self._tokenizer.encode(rest + full[len(closed) :])
        return Extension(trail=trail, added=added)

    def _sampled_of(self, written: Sequence[int], sampled: Sequence[int]) -> int:
        """How much of what is written behind a reply the model has sampled: its end, or nothing.

        Where a reply is several messages, what ends the last of them comes first.
        """
        if not sampled:
            return 0
        if self._ends_as(sampled[-1], written[0]):
            return 1
        return 2 if list(sampled[-2:]) == list(written[:2]) else 0

    def _ends_as(self, sampled: int, written: int) -> bool:
        """Whether the token that ended a reply may stand where the template writes another."""
        token = self._tokenizer.token_of
        return sampled == written or _SAME_END.get(token(sampled) or "") == token(written)

    def _prove(
        self, roles: tuple[str, ...], tools: bool, thinking: bool, kwargs: str
    ) -> Continuation:
        return prove(
            self._template, roles, tools=tools, thinking=thinking, kwargs=json.loads(kwargs)
        )

    def _holds_reasoning(self, trail: Trail) -> bool:
        if not self._thinks:
            return False
        if self._think_end is not None:
            end = self._think_end
            return holds(trail.sampled_ids, end) or holds(trail.prompt_ids, end)
        return any(
            "</think>" in self._tokenizer.decode(ids)
            for ids in (trail.sampled_ids, trail.prompt_ids)
        )


def _collapsed(roles: Sequence[str]) -> tuple[str, ...]:
    """Runs of one role count as two, so that 3 or 30 tool results share a proof."""
    kept: list[str] = []
    for role in roles:
        if kept[-2:] != [role, role]:
            kept.append(role)
    return tuple(kept)
