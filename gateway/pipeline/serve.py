"""The pipeline itself."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from uuid import UUID

import structlog

from gateway.config import Settings
from gateway.engine.pool import EnginePool, Stream
from gateway.errors import ContextTooLong, InvalidRequest
from gateway.pipeline.choice import Choice
from gateway.pipeline.events import Ended, Event, Finished, Started
from gateway.pipeline.interleave import interleaved
from gateway.pipeline.place import Placer
from gateway.pipeline.prompt import Prompt, Prompter
from gateway.pipeline.recorder import Recorder
from gateway.pipeline.source import Source, TokenSource, reply_format
from gateway.pipeline.text_source import TextSource
from gateway.pipeline.turn import TEXT_ONLY, Call
from gateway.records import (
    Generation,
    Principal,
    Sampling,
    TextGeneration,
    TurnKind,
    TurnRequest,
    new_id,
)
from gateway.store.turns import TurnStore
from gateway.store.writer import TurnWriter
from gateway.tokens.grammar import enforced
from gateway.tokens.renderer import Renderer
from gateway.tokens.reply_format import CALL_END, ReplyFormat
from gateway.tokens.tokenizer import Tokenizer

#: SGLang refuses prompts that leave fewer ids than this in the context.
_ENGINE_RESERVE = 6

_LARGEST_SEED = 2**63


class Pipeline:
    """Everything a turn passes through. One instance a process."""

    def __init__(
        self,
        *,
        settings: Settings,
        pool: EnginePool,
        turns: TurnStore,
        writer: TurnWriter,
        tokenizer: Tokenizer,
        renderer: Renderer,
    ) -> None:
        self._settings = settings
        self._pool = pool
        self._tokenizer = tokenizer
        self._placer = Placer(settings, turns)
        self._prompter = Prompter(turns, renderer)
        self._recorder = Recorder(turns, writer)

    async def close(self) -> None:
        """Wait (bounded) until turns that clients left behind are stored."""
        await self._recorder.close(self._settings.gateway.shutdown_grace_s)
        self._prompter.close()

    async def count_tokens(self, request: TurnRequest) -> int:
        """The length [P] of the prompt of a request, unsampled. Raises InvalidRequest."""
        return await self._prompter.length(request)

    async def serve_turn(
        self, principal: Principal, request: TurnRequest
    ) -> AsyncGenerator[Event, None]:
        """Serve one call. Closing the generator early aborts it and stores what was sampled.

        Raises RequestError and EngineError, which end all choices; while Postgres is away it
        serves all the same.
        """
        created_at, clock = time.time(), time.perf_counter()
        # Ids of one millisecond are in no order: sorted, they keep that of the choices.
        turn_ids = sorted(new_id() for _ in range(request.choices))
        place = await self._placer.place(principal, request, created_at)
        structlog.contextvars.bind_contextvars(
            session_id=str(place.session.id), turn_id=str(turn_ids[0])
        )
        call = Call(
            principal=principal,
            request=request,
            place=place,
            created_at=created_at,
            clock=clock,
            unsettled=len(turn_ids),
        )
        signal = self._recorder.next_state(call, turn_ids[0])
        if self._pool.text_only(principal.lineage_id):
            prompt, sources = self._text_sources(call)
        else:
            prompt, sources = await self._token_sources(call, turn_ids)
        choices = [
            Choice(
                call,
                index=index,
                turn_id=turn_ids[index],
                source=source,
                prompt=prompt,
                sampling=sampling,
                recorder=self._recorder,
                signal=signal,
            )
            for index, (sampling, source) in enumerate(sources)
        ]
        started = False
        ended: list[Ended] = []
        async with aclosing(interleaved([choice.events() for choice in choices])) as events:
            async for event in events:
                if isinstance(event, Started):
                    if not started:
                        yield replace(event, turn_id=turn_ids[0])
                    started = True
                    continue
                if isinstance(event, Ended):
                    ended.append(event)
                yield event
        yield Finished(
            turn_id=turn_ids[0],
            session_id=place.session.id,
            created_at=created_at,
            choices=tuple(sorted(ended, key=lambda one: one.choice)),
        )

    async def _token_sources(
        self, call: Call, turn_ids: Sequence[UUID]
    ) -> tuple[Prompt, list[tuple[Sampling, Source]]]:
        """The ids that every choice begins with, and each choice's own sampling and source."""
        request = call.request
        prompt = await self._prompter.prompt(call.principal, request, call.place.resolution)
        sampling, form = self._form(request, prompt, self._sampling(call, prompt.ids))
        sources: list[tuple[Sampling, Source]] = []
        for index, turn_id in enumerate(turn_ids):
            own = _of_choice(sampling, index)
            source = TokenSource(
                self._stream(call, turn_id, prompt, own),
                self._tokenizer,
                form=form,
                sampling=own,
                choice=index,
                call_prefix=request.call_prefix,
            )
            sources.append((own, source))
        return prompt, sources

    def _text_sources(self, call: Call) -> tuple[Prompt, list[tuple[Sampling, Source]]]:
        """The same without ids; sampling is what the client set, since all else is not ours."""
        request, session_key = call.request, call.place.session.id.hex
        if request.prompt_ids is not None:
            raise InvalidRequest("This model takes messages only.", param="prompt")
        sources: list[tuple[Sampling, Source]] = []
        for index in range(request.choices):
            own = _of_choice(request.sampling, index)
            stream = self._pool.texts.generate(
                TextGeneration(request=request, seed=own.seed), session_key
            )
            source = TextSource(stream, choice=index, call_prefix=request.call_prefix)
            sources.append((own, source))
        reason = None if call.place.resolution.parent is None else TEXT_ONLY
        return Prompt(ids=[], branch_reason=reason), sources

    def _form(
        self, request: TurnRequest, prompt: Prompt, sampling: Sampling
    ) -> tuple[Sampling, ReplyFormat]:
        """How the reply will be written, and sampling with what makes sure of it.

        At most one call needs no grammar, which would make the turn untrainable: sampling stops
        where the first call ends.
        """
        if request.prompt_ids is not None:
            return sampling, ReplyFormat()
        required = request.tool_choice == "required"
        grammar, form = enforced(
            sampling.grammar,
            request.tools,
            reply_format(
                self._tokenizer, prompt, tools=bool(request.tools) and request.tool_choice != "none"
            ),
            required=required,
            allowed=request.allowed_tools,
            parallel=request.parallel_tool_calls,
        )
        stop = sampling.stop
        if form.tools and not required and not request.parallel_tool_calls:
            stop = (*stop, CALL_END)
        return replace(sampling, grammar=grammar, stop=stop), form

    def _stream(self, call: Call, turn_id: UUID, prompt: Prompt, sampling: Sampling) -> Stream:
        session_key = call.place.session.id.hex
        return self._pool.generate(
            lambda policy: Generation(
                rid=turn_id.hex,
                input_ids=prompt.ids,
                sampling=sampling,
                policy=policy,
                stop_token_ids=self._tokenizer.facts.stop_token_ids,
                session_key=session_key,
                top_logprobs=call.request.top_logprobs or 0,
            ),
            call.principal.lineage_id,
            session_key,
        )

    def _sampling(self, call: Call, prompt_ids: list[int]) -> Sampling:
        """Sampling as sent: defaults filled in, the reply bounded by what the context leaves."""
        request, facts = call.request, self._tokenizer.facts
        if (wrong := self._tokenizer.first_invalid(prompt_ids)) is not None:
            raise InvalidRequest(f"token id {wrong} is outside the model's vocabulary")
        limit = self._pool.context_length(
            self._settings.model.context_length or facts.context_length
        )
        left = limit - len(prompt_ids)
        asked = request.sampling.max_tokens
        if request.shorten and asked is not None:
            asked = min(asked, max(left, 1))
        if left <= _ENGINE_RESERVE or (asked is not None and asked > left):
            raise ContextTooLong(
                limit=limit, prompt_tokens=len(prompt_ids), reply_tokens=asked or 1
            )
        for token in request.sampling.logit_bias or ():
            if not 0 <= token < facts.vocab_size:
                raise InvalidRequest(f"logit_bias: there is no token {token}", param="logit_bias")
        defaults = self._settings.sampling
        return replace(request.sampling, max_tokens=asked).filled(
            Sampling(
                temperature=defaults.temperature,
                top_p=defaults.top_p,
                max_tokens=min(defaults.max_tokens or left, left),
            ),
            None if call.place.kind.kind is TurnKind.SIDE else call.principal.sampling,
        )


def _of_choice(sampling: Sampling, index: int) -> Sampling:
    """A seed makes choices repeatable, not equal: each counts on from it."""
    if sampling.seed is None or not index:
        return sampling
    return replace(sampling, seed=(sampling.seed + index) % _LARGEST_SEED)
