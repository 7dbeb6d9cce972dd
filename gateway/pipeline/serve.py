"""The pipeline itself."""

from __future__ import annotations

import time
from collections.abc import Sequence
from uuid import UUID

from msgspec.structs import replace

from gateway.classify import Awareness
from gateway.config import Settings
from gateway.engine.pool import EnginePool, Stream
from gateway.errors import InvalidRequest
from gateway.pipeline.admission import Admitter
from gateway.pipeline.admitted import admitted, learnable
from gateway.pipeline.bounds import bounded
from gateway.pipeline.choice import Choice
from gateway.pipeline.events import Finished, Listener, Started
from gateway.pipeline.fitting import fitting
from gateway.pipeline.media import check_kept, refused, sources_of
from gateway.pipeline.place import Placer
from gateway.pipeline.prompt import Prompt, Prompter
from gateway.pipeline.recorder import Recorder
from gateway.pipeline.shown_length import shown_length
from gateway.pipeline.source import Source, TokenSource, reply_format
from gateway.pipeline.spans import TurnSpans
from gateway.pipeline.text_source import TextSource
from gateway.pipeline.together import together
from gateway.pipeline.turn import TEXT_ONLY, Call
from gateway.records import (
    Generation,
    Media,
    Principal,
    Sampling,
    TextGeneration,
    TurnRequest,
    media_of,
    new_id,
    packed_ids,
)
from gateway.redaction import Redactor
from gateway.store.turns import TurnStore
from gateway.store.writer import TurnWriter
from gateway.telemetry import bind
from gateway.telemetry.metrics import ServingMetrics
from gateway.telemetry.tracing import Context, Traces
from gateway.tokens.grammar import enforced
from gateway.tokens.renderer import Renderer
from gateway.tokens.reply_format import PLAIN, ReplyFormat
from gateway.tokens.tokenizer import ModelFacts, Tokenizer

#: Tokens at a time where the client is told of all at once: each event costs engine and gateway
#: more than the token in it. What is lost of a reply that breaks off, which nobody trains on, is
#: less than this.
UNWATCHED = 16


class Pipeline:
    """Everything a turn passes through. One instance a process."""

    def __init__(
        self,
        *,
        settings: Settings,
        pool: EnginePool,
        turns: TurnStore,
        writer: TurnWriter,
        tokenizer: Tokenizer | None,
        renderer: Renderer,
        awareness: Awareness | None = None,
        metrics: ServingMetrics | None = None,
        admitter: Admitter | None = None,
        redactor: Redactor | None = None,
        traces: Traces | None = None,
    ) -> None:
        """Without a `tokenizer` only engines of text are asked."""
        self._admitter = admitter or Admitter(settings.freshness)
        self._settings = settings
        self._pool = pool
        self._tokenizer = tokenizer
        told = 0 if tokenizer is None else tokenizer.facts.context_length
        #: In ids; an engine may have been started with less.
        self._context_length = settings.model.context_length or told
        self._placer = Placer(settings, turns, awareness)
        self._prompter = Prompter(turns, renderer)
        self._spans = None if traces is None else TurnSpans(traces)
        self._recorder = Recorder(
            turns,
            writer,
            keep_media=settings.capture.media,
            redactor=redactor,
            metrics=metrics,
            spans=self._spans,
            log_content=settings.log.content,
        )
        self._kinds = frozenset(renderer.marks)
        self._hash_key = b"" if redactor is None else redactor.key

    async def close(self) -> None:
        """Wait (bounded) until turns that clients left behind are stored."""
        await self._recorder.close(self._settings.gateway.shutdown_grace_s)
        self._prompter.close()

    async def count_tokens(self, principal: Principal, request: TurnRequest) -> int:
        """The length [P] of the prompt of a request, which is not stored.

        How many ids images and audio become an engine says, which is asked for one token. Raises
        InvalidRequest, and EngineError where it does not answer.
        """
        media = media_of(request.messages)
        if media:
            as_text = self._tokenizer is None or self._pool.text_only(principal.lineage_id)
            self._check_media(media, as_text=as_text)
            if as_text:
                raise InvalidRequest(
                    "Images and audio are counted by the model alone, when it is asked.",
                    param="messages",
                )
        ids = await self._prompter.ids(request)
        return await shown_length(self._pool, principal, ids, media) if media else len(ids)

    async def fitted(self, principal: Principal, request: TurnRequest) -> TurnRequest:
        """A request without its oldest messages, if with them it is longer than the context.

        Engines of text tell no lengths, and get all of it. Raises InvalidRequest where the model's
        template refuses the messages.
        """
        if self._tokenizer is None or self._pool.text_only(principal.lineage_id):
            return request

        async def measure(asked: TurnRequest) -> int:
            return len(await self._prompter.ids(asked))

        limit = self._pool.context_length(self._context_length)
        return await fitting(request, limit, measure)

    async def serve_turn(
        self,
        principal: Principal,
        request: TurnRequest,
        listener: Listener | None = None,
        client: Context | None = None,
    ) -> Finished:
        """Serve one call, below its client's span where it named one; `listener` hears of it.

        Being cancelled aborts it and stores what was sampled.

        Raises RequestError and EngineError, which end all choices; while Postgres is away it
        serves all the same.
        """
        created_at, clock = time.time(), time.perf_counter()
        if self._hash_key:
            request = replace(request, hash_key=self._hash_key)
        media = media_of(request.messages)
        as_text = self._tokenizer is None or self._pool.text_only(principal.lineage_id)
        if media:
            self._check_media(media, as_text=as_text)
        if request.choices == 1:
            turn_ids = [new_id()]
        else:
            # Ids of one millisecond are in no order: sorted, they keep that of the choices.
            turn_ids = sorted(new_id() for _ in range(request.choices))
        place = await self._placer.place(principal, request, created_at)
        bind(session_id=str(place.session.id), turn_id=str(turn_ids[0]))
        call = Call(
            principal=principal,
            request=request,
            place=place,
            created_at=created_at,
            clock=clock,
            unsettled=len(turn_ids),
            media=media,
            client=client,
        )
        signal = self._recorder.next_state(call, turn_ids[0])
        tokenizer = self._tokenizer
        if tokenizer is None or as_text:
            prompt, sources = self._text_sources(call)
        else:
            prompt, sources = await self._token_sources(call, turn_ids, tokenizer)
        running = admitted(self._admitter, call, sources, self._pool)
        captured = call.principal.capture
        opening = Started(
            turn_id=turn_ids[0],
            session_id=place.session.id,
            created_at=created_at,
            prompt_tokens=len(prompt.ids),
            captured=captured,
        )
        runs = []
        for index, (sampling, source) in enumerate(sources):
            choice = Choice(
                call,
                index=index,
                turn_id=turn_ids[index],
                source=source,
                prompt=prompt,
                sampling=sampling,
                recorder=self._recorder,
                signal=signal,
            )
            runs.append(choice.run(opening, listener))
        with self._admitter.sampling(principal.lineage_id, running):
            ended = [await runs[0]] if len(runs) == 1 else await together(runs)
        return Finished(
            turn_id=turn_ids[0],
            session_id=place.session.id,
            created_at=created_at,
            choices=tuple(ended),
            captured=captured,
        )

    def _check_media(self, media: Sequence[Media], *, as_text: bool) -> None:
        """Raises InvalidRequest for what the engines that serve now do not take."""
        check_kept(media)
        if as_text:
            taken = self._pool.texts.takes(media)
        else:
            fetches = self._settings.model.fetch_media
            taken = all(one.kind in self._kinds and (fetches or not one.is_remote) for one in media)
        if not taken:
            raise refused(media)

    async def _token_sources(
        self, call: Call, turn_ids: Sequence[UUID], tokenizer: Tokenizer
    ) -> tuple[Prompt, list[tuple[Sampling, Source]]]:
        """The ids that every choice begins with, and each choice's own sampling and source."""
        request = call.request
        prompt = await self._prompter.prompt(
            call.principal, request, call.place.resolution, call.media
        )
        sampling = bounded(
            call,
            prompt.ids,
            tokenizer,
            limit=self._pool.context_length(self._context_length),
            defaults=self._settings.sampling,
        )
        sampling, form = self._form(request, prompt, sampling, tokenizer)
        sources: list[tuple[Sampling, Source]] = []
        for index, turn_id in enumerate(turn_ids):
            own = sampling.of_choice(index) if index else sampling
            source = TokenSource(
                self._stream(call, turn_id, prompt, own, tokenizer.facts),
                tokenizer,
                form=form,
                sampling=own,
                choice=index,
                call_prefix=request.call_prefix,
                watched=request.stream,
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
            own = request.sampling.of_choice(index)
            stream = self._pool.texts.generate(
                TextGeneration(request=request, seed=own.seed), session_key, call.media
            )
            source = TextSource(stream, choice=index, call_prefix=request.call_prefix)
            sources.append((own, source))
        reason = None if call.place.resolution.parent is None else TEXT_ONLY
        return Prompt(ids=packed_ids(()), branch_reason=reason), sources

    def _form(
        self, request: TurnRequest, prompt: Prompt, sampling: Sampling, tokenizer: Tokenizer
    ) -> tuple[Sampling, ReplyFormat]:
        """How the reply will be written, and sampling with what makes sure of it.

        At most one call needs no grammar, which would make the turn untrainable: sampling stops
        where the first call ends.
        """
        if request.prompt_ids is not None:
            return sampling, PLAIN
        tools = () if request.tool_choice == "none" else request.tools
        form = reply_format(tokenizer, prompt, tools)
        required, grammar = request.tool_choice == "required", sampling.grammar
        if required or grammar is not None:
            grammar, form = enforced(
                grammar,
                request.tools,
                form,
                required=required,
                allowed=request.allowed_tools,
                parallel=request.parallel_tool_calls,
            )
        stop = sampling.stop
        if form.calls and not required and not request.parallel_tool_calls:
            stop = (*stop, *form.calls.one_call_stops)
        if grammar is not sampling.grammar or stop is not sampling.stop:
            sampling = replace(sampling, grammar=grammar, stop=stop)
        return sampling, form

    def _stream(
        self, call: Call, turn_id: UUID, prompt: Prompt, sampling: Sampling, facts: ModelFacts
    ) -> Stream:
        session_key, media = call.place.session.id.hex, call.media
        spans = self._spans
        traceparent = None if spans is None else spans.traceparent(call.client, turn_id)
        return self._pool.generate(
            lambda policy: Generation(
                rid=turn_id.hex,
                input_ids=prompt.ids,
                sampling=sampling,
                policy=policy,
                stop_token_ids=facts.stop_token_ids,
                session_key=session_key,
                top_logprobs=call.request.top_logprobs or 0,
                kept=sampling.cut_to is not None and learnable(call),
                images=sources_of("image", media) if media else (),
                audio=sources_of("audio", media) if media else (),
                traceparent=traceparent,
                stream_interval=1 if call.request.stream else UNWATCHED,
            ),
            call.principal.lineage_id,
            session_key,
        )
