"""What every engine does, asked of the fake and of the real SGLang alike."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from uuid import UUID

import aiohttp
import numpy as np
import pytest
from msgspec import structs
from tokenizers import Tokenizer

from gateway.config import EngineSettings
from gateway.engine.sglang import SglangEngine
from gateway.engine.whole_weights import IN_DOUBT
from gateway.errors import EngineRejected, EngineUnavailable
from gateway.records import (
    Chunk,
    FinishReason,
    Generation,
    PolicyKind,
    PolicyRef,
    Sampling,
    VersionSpan,
    new_id,
)
from tests.fakes import FakeSglang
from tests.fixtures_engine import free_port
from tests.tiny_model import CONTEXT, IM_END, make_adapter, make_model

LINEAGE = UUID(int=7)
BASE = PolicyRef(lineage_id=LINEAGE, version=0, kind=PolicyKind.BASE)
PROMPT = tuple(range(20, 40))


@pytest.fixture
async def fake_on_tiny(tiny_model: Path) -> AsyncIterator[FakeSglang]:
    async with FakeSglang(model_path=tiny_model, chunk_delay_s=0.002) as fake:
        yield fake


@pytest.fixture(params=["fake", pytest.param("sglang", marks=pytest.mark.sglang)])
def engine_url(request: pytest.FixtureRequest) -> str:
    if request.param == "fake":
        return request.getfixturevalue("fake_on_tiny").url
    return request.getfixturevalue("sglang_url")


@pytest.fixture
async def engine(engine_url: str) -> AsyncIterator[SglangEngine]:
    engine = SglangEngine(EngineSettings(name="under-test", url=engine_url))
    yield engine
    await engine.close()


@pytest.fixture
def tokenizer(tiny_model: Path) -> Tokenizer:
    return Tokenizer.from_file(str(tiny_model / "tokenizer.json"))


def lora(version: int, directory: Path, lineage: UUID | None = None) -> PolicyRef:
    return PolicyRef(
        lineage_id=lineage or new_id(),
        version=version,
        kind=PolicyKind.LORA,
        uri=str(make_adapter(directory / f"v{version}", seed=version)),
    )


def ask(
    sampling: Sampling | None = None,
    *,
    policy: PolicyRef = BASE,
    prompt: Sequence[int] = PROMPT,
    stop: tuple[int, ...] = (),
) -> Generation:
    return Generation(
        rid=new_id().hex,
        input_ids=prompt,
        sampling=sampling or Sampling(temperature=1.0, max_tokens=16),
        policy=policy,
        stop_token_ids=stop,
    )


async def collect(engine: SglangEngine, request: Generation) -> list[Chunk]:
    return [chunk async for chunk in engine.generate(request)]


def whole(chunks: list[Chunk]) -> Chunk:
    """All chunks as one."""
    return Chunk(
        ids=tuple(token for chunk in chunks for token in chunk.ids),
        logprobs=tuple(value for chunk in chunks for value in chunk.logprobs),
        kept=tuple(row for chunk in chunks for row in chunk.kept),
        finish=chunks[-1].finish,
    )


async def reply(engine: SglangEngine, request: Generation) -> Chunk:
    return whole(await collect(engine, request))


GREEDY = Sampling(temperature=0.0, max_tokens=24)


async def test_a_reply_comes_in_chunks_that_end_with_the_finish(engine: SglangEngine) -> None:
    never_ends = {2: -100.0}
    chunks = await collect(
        engine, ask(Sampling(temperature=1.0, max_tokens=64, logit_bias=never_ends), stop=())
    )
    # A reader that had to wait finds several tokens at once.
    assert len(chunks) > 1
    assert [chunk.finish for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert all(len(chunk.ids) == len(chunk.logprobs) for chunk in chunks)
    result = whole(chunks)
    assert len(result.ids) == 64
    assert all(value <= 0 for value in result.logprobs)
    assert result.finish is not None
    assert result.finish.reason is FinishReason.LENGTH
    assert result.finish.spans == (VersionSpan(0, 0, 64),)
    assert result.finish.detail is None


async def test_what_nobody_watches_comes_in_few_pieces(engine: SglangEngine) -> None:
    greedy = Sampling(temperature=0.0, max_tokens=64, logit_bias={2: -100.0})
    watched = await reply(engine, ask(greedy))
    chunks = await collect(engine, structs.replace(ask(greedy), stream_interval=8))
    # The first token at once, 8 a piece behind it, and what is left: 1 + 7 * 8 + 7.
    assert 2 <= len(chunks) <= 9
    result = whole(chunks)
    assert result.ids == watched.ids
    assert result.logprobs == pytest.approx(watched.logprobs, abs=1e-3)
    assert result.finish is not None
    assert result.finish.detail is None


CUT = (
    Sampling(temperature=0.8, top_k=8, max_tokens=40),
    Sampling(temperature=1.0, top_k=12, top_p=0.6, max_tokens=40),
    Sampling(temperature=1.3, top_k=12, min_p=0.3, max_tokens=40),
)


@pytest.mark.parametrize("sampling", CUT)
async def test_an_engine_tells_from_what_it_sampled(
    engine: SglangEngine, sampling: Sampling
) -> None:
    """The sets by hand from scores of every id, but for those that stand on an edge."""
    status = await engine.status()
    assert status.kept_most >= 64
    assert status.vocab_size is not None
    result = await reply(engine, structs.replace(ask(sampling), kept=True))
    assert len(result.ids) == len(result.logprobs) == len(result.kept) > 0
    ids = [*PROMPT, *result.ids]
    found = await engine.likeliest(ids, len(PROMPT), BASE, status.vocab_size)
    for at, (token, kept) in enumerate(zip(result.ids, result.kept, strict=True)):
        values = np.array(found.top_logprobs[at]) / (sampling.temperature or 1.0)
        probs = np.exp(values - values.max())
        probs /= probs.sum()
        within, without = inside(probs, sampling)
        names = np.array(found.top_ids[at])
        assert set(names[within]) <= set(kept)
        assert not set(names[without]) & set(kept)
        assert token in kept
        assert len(set(kept)) == len(kept) <= (sampling.top_k or 0)
        mass = sum(probs[names == id_].item() for id_ in kept)
        among = np.log(probs[names == token].item() / mass)
        assert result.logprobs[at] == pytest.approx(among, abs=1e-3)


def inside(probs: np.ndarray, sampling: Sampling) -> tuple[np.ndarray, np.ndarray]:
    """Which of `probs` [V], the largest first, sampling surely keeps, and surely leaves out."""
    edge = 1e-3
    above = [int((probs > p * (1 + edge)).sum()) for p in probs]
    upto = [int((probs >= p * (1 - edge)).sum()) for p in probs]
    mass_above = [probs[probs > p * (1 + edge)].sum() for p in probs]
    mass_upto = [probs[probs >= p * (1 - edge)].sum() - p for p in probs]
    k, top_p = sampling.top_k or len(probs), sampling.top_p or 1.0
    floor = (sampling.min_p or 0.0) * probs.max()
    within = (np.array(upto) <= k) & (np.array(mass_upto) <= top_p - edge)
    within &= probs >= floor * (1 + edge)
    without = (np.array(above) >= k) | (np.array(mass_above) > top_p + edge)
    without |= probs < floor * (1 - edge)
    return within, without


async def test_nothing_is_asked_for_that_an_engine_cannot_tell(engine: SglangEngine) -> None:
    """Without a bound, or with one that is too large, the request is served all the same."""
    most = (await engine.status()).kept_most
    for sampling in (
        Sampling(temperature=1.0, top_p=0.9, max_tokens=4),
        Sampling(temperature=1.0, top_k=most + 1, max_tokens=4),
        Sampling(temperature=1.0, top_k=1, max_tokens=4),
        Sampling(temperature=1.0, max_tokens=4),
    ):
        result = await reply(engine, structs.replace(ask(sampling), kept=True))
        assert (len(result.ids), result.kept) == (len(result.logprobs), ())


async def test_logprobs_at_temperature_one_equal_the_scores(engine: SglangEngine) -> None:
    result = await reply(engine, ask())
    scores = await engine.score([*PROMPT, *result.ids], len(PROMPT), BASE)
    assert scores == pytest.approx(list(result.logprobs), abs=1e-4)


async def test_what_else_could_stand_in_each_place_is_scored_too(engine: SglangEngine) -> None:
    start = len(PROMPT) - 5
    own = await engine.score(PROMPT, start, BASE)
    found = await engine.likeliest(PROMPT, start, BASE, 50)
    assert found.logprobs == pytest.approx(own, abs=1e-4)
    assert [len(row) for row in found.top_ids] == [50] * 5
    for row in found.top_logprobs:
        assert list(row) == sorted(row, reverse=True)
        assert sum(math.exp(value) for value in row) < 1
    # The same ids asked for by name, in another order, have the same values.
    among = [row[::-1] for row in found.top_ids]
    again = await engine.score_among(PROMPT, start, BASE, among)
    assert again.top_ids == tuple(among)
    assert again.logprobs == pytest.approx(own, abs=1e-4)
    for place, row in enumerate(again.top_logprobs):
        assert row == pytest.approx(found.top_logprobs[place][::-1], abs=1e-4)
    # The token's own value is that among the others.
    wanted = [[token, 7] for token in PROMPT[start:]]
    named = await engine.score_among(PROMPT, start, BASE, wanted)
    assert [row[0] for row in named.top_logprobs] == pytest.approx(own, abs=1e-4)
    with pytest.raises(EngineRejected):
        await engine.score_among(PROMPT, start, BASE, wanted[1:])


async def test_alternatives_of_many_places_are_asked_for_in_pieces(engine: SglangEngine) -> None:
    ids = [20 + place % 90 for place in range(200)]
    among = [[30 + place % 70] for place in range(199)]
    found = await engine.score_among(ids, 1, BASE, among)
    assert found.logprobs == pytest.approx(await engine.score(ids, 1, BASE), abs=1e-4)
    assert [len(row) for row in found.top_logprobs] == [1] * 199
    alone = await engine.score([*ids[:150], among[149][0]], 150, BASE)
    assert found.top_logprobs[149] == pytest.approx(alone, abs=1e-4)


async def test_scoring_starts_anywhere_and_needs_something_to_score(engine: SglangEngine) -> None:
    everything = await engine.score(PROMPT, 1, BASE)
    assert len(everything) == len(PROMPT) - 1
    assert await engine.score(PROMPT, 15, BASE) == pytest.approx(everything[14:], abs=1e-4)
    assert len(await engine.score(PROMPT, len(PROMPT) - 1, BASE)) == 1
    with pytest.raises(EngineRejected, match="cannot score"):
        await engine.score(PROMPT, 0, BASE)
    with pytest.raises(EngineRejected, match="cannot score"):
        await engine.score(PROMPT, len(PROMPT), BASE)


async def test_the_last_id_of_the_vocabulary_is_scored_as_itself(engine: SglangEngine) -> None:
    vocabulary = (await engine.status()).vocab_size
    assert vocabulary is not None
    last = vocabulary - 1
    # Biased towards it, the engine samples it; the bias changes what it reports, not the score.
    sampled = await reply(
        engine, ask(Sampling(temperature=1.0, max_tokens=3, logit_bias={last: 100.0}))
    )
    assert sampled.ids == (last,) * 3
    scores = await engine.score([*PROMPT, last], len(PROMPT), BASE)
    others = await engine.score([*PROMPT, 0], len(PROMPT), BASE)
    assert abs(scores[0] - others[0]) > 1e-3


async def test_greedy_replies_repeat_and_sampled_ones_vary(engine: SglangEngine) -> None:
    first, second = await reply(engine, ask(GREEDY)), await reply(engine, ask(GREEDY))
    assert first.ids == second.ids
    assert len({(await reply(engine, ask())).ids for _ in range(3)}) == 3


async def test_the_stop_token_is_the_last_id(engine: SglangEngine) -> None:
    greedy = (await reply(engine, ask(GREEDY))).ids
    at = next(i for i in range(1, len(greedy)) if greedy[i] not in greedy[:i])
    result = await reply(engine, ask(GREEDY, stop=(greedy[at],)))
    assert result.ids == greedy[: at + 1]
    assert len(result.logprobs) == at + 1
    assert result.finish is not None
    assert (result.finish.reason, result.finish.matched) == (FinishReason.STOP, greedy[at])
    assert result.finish.spans == (VersionSpan(0, 0, at + 1),)


async def test_a_stop_string_ends_after_the_token_that_completes_it(
    engine: SglangEngine, tokenizer: Tokenizer
) -> None:
    greedy = (await reply(engine, ask(GREEDY))).ids
    texts = [tokenizer.decode(list(greedy[: i + 1])) for i in range(len(greedy))]
    at = next(
        i
        for i in range(2, len(greedy))
        if (word := tokenizer.decode([greedy[i]])).isascii() and word not in texts[i - 1]
    )
    stop = tokenizer.decode([greedy[at]])
    result = await reply(engine, ask(Sampling(temperature=0.0, max_tokens=24, stop=(stop,))))
    assert result.ids == greedy[: at + 1]
    assert result.finish is not None
    assert (result.finish.reason, result.finish.matched) == (FinishReason.STOP, stop)


async def test_without_a_limit_a_reply_fills_the_context(engine: SglangEngine) -> None:
    result = await reply(
        engine,
        ask(Sampling(temperature=1.0, logit_bias={2: -100.0}), prompt=[30] * (CONTEXT - 60)),
    )
    assert result.finish is not None
    assert result.finish.reason is FinishReason.LENGTH
    assert 50 < len(result.ids) <= 60


async def test_leaving_early_stops_the_engine(engine: SglangEngine) -> None:
    sampling = Sampling(temperature=1.0, max_tokens=1900, logit_bias={2: -100.0})
    chunks = engine.generate(ask(sampling))
    async for _ in chunks:
        break
    await chunks.aclose()
    async with asyncio.timeout(120):
        while (await engine.status()).running:
            await asyncio.sleep(0.05)


async def test_requests_that_the_engine_cannot_serve(engine: SglangEngine) -> None:
    too_long = ask(prompt=[30] * (CONTEXT + 10))
    with pytest.raises(EngineRejected, match="longer than the model's context length"):
        await collect(engine, too_long)
    too_much = ask(Sampling(temperature=1.0, max_tokens=1500), prompt=[30] * 1000)
    with pytest.raises(EngineRejected, match="maximum context length"):
        await collect(engine, too_much)
    with pytest.raises(EngineRejected, match="temperature"):
        await collect(engine, ask(Sampling(temperature=-1.0, max_tokens=4)))
    with pytest.raises(EngineRejected, match="unknown kind of grammar"):
        await collect(engine, ask(Sampling(grammar={"telepathy": "x"})))
    with pytest.raises(EngineRejected, match="empty"):
        await collect(engine, ask(prompt=()))
    assert (await engine.status()).ready


async def test_ids_outside_the_vocabulary_never_reach_the_engine(engine: SglangEngine) -> None:
    vocabulary = (await engine.status()).vocab_size
    assert vocabulary is not None
    for ids in ([5, vocabulary], [-1, 5]):
        with pytest.raises(EngineRejected, match="vocabulary"):
            await collect(engine, ask(prompt=ids))
        with pytest.raises(EngineRejected, match="vocabulary"):
            await engine.score(ids, 1, BASE)
    assert len((await reply(engine, ask(prompt=[5, vocabulary - 1]))).ids) > 0


async def test_a_request_id_in_use_is_refused(engine: SglangEngine) -> None:
    request = ask(Sampling(temperature=1.0, max_tokens=300, logit_bias={2: -100.0}))
    first = engine.generate(request)
    await anext(first)
    with pytest.raises(EngineRejected, match="Duplicate"):
        await collect(engine, request)
    await first.aclose()


async def test_status_tells_what_the_engine_is(engine: SglangEngine) -> None:
    status = await engine.status()
    assert status.ready
    assert status.supports_lora
    assert status.context_length == CONTEXT
    assert status.weight_version
    assert status.max_total_tokens is not None
    assert status.max_total_tokens >= 8192


async def test_an_adapter_is_loaded_once_and_dropped_once(
    engine: SglangEngine, tmp_path: Path
) -> None:
    policy = lora(1, tmp_path)
    assert policy.adapter not in (await engine.status()).adapters
    assert await engine.load(policy) > 0
    assert await engine.load(policy) > 0
    assert policy.adapter in (await engine.status()).adapters
    await engine.unload(policy)
    await engine.unload(policy)
    assert policy.adapter not in (await engine.status()).adapters


async def test_a_name_is_never_another_adapter(engine: SglangEngine, tmp_path: Path) -> None:
    lineage = new_id()
    policy = lora(1, tmp_path / "a", lineage)
    impostor = lora(1, tmp_path / "b", lineage)
    await engine.load(policy)
    with pytest.raises(EngineRejected, match="already loaded"):
        await engine.load(impostor)
    await engine.unload(policy)


async def test_weights_that_are_not_there_are_refused(engine: SglangEngine, tmp_path: Path) -> None:
    missing = PolicyRef(
        lineage_id=new_id(), version=1, kind=PolicyKind.LORA, uri=str(tmp_path / "missing")
    )
    with pytest.raises(EngineRejected):
        await engine.load(missing)
    unnamed = PolicyRef(lineage_id=new_id(), version=1, kind=PolicyKind.LORA)
    with pytest.raises(EngineRejected, match="no weights"):
        await engine.load(unnamed)
    assert missing.adapter not in (await engine.status()).adapters


async def test_the_base_needs_no_loading(engine: SglangEngine) -> None:
    before = (await engine.status()).adapters
    await engine.load(BASE)
    await engine.unload(BASE)
    assert (await engine.status()).adapters == before


async def test_a_version_that_is_not_loaded_cannot_serve(
    engine: SglangEngine, tmp_path: Path
) -> None:
    with pytest.raises(EngineUnavailable, match="never been loaded"):
        await collect(engine, ask(policy=lora(3, tmp_path)))
    with pytest.raises(EngineUnavailable, match="never been loaded"):
        await engine.score(PROMPT, 1, lora(3, tmp_path))


async def test_versions_serve_side_by_side_and_differ(engine: SglangEngine, tmp_path: Path) -> None:
    lineage = new_id()
    policies = [BASE, lora(1, tmp_path, lineage), lora(2, tmp_path, lineage)]
    for policy in policies:
        await engine.load(policy)
    results = await asyncio.gather(*(reply(engine, ask(policy=policy)) for policy in policies))
    scores = []
    for policy, result in zip(policies, results, strict=True):
        ids = [*PROMPT, *result.ids]
        own = await engine.score(ids, len(PROMPT), policy)
        assert own == pytest.approx(list(result.logprobs), abs=1e-4)
        assert result.finish is not None
        assert result.finish.spans == (VersionSpan(policy.version, 0, len(result.ids)),)
        scores.append(await engine.score(PROMPT, 1, policy))
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert max(abs(a - b) for a, b in zip(scores[one], scores[other], strict=True)) > 0.1
    for policy in policies:
        await engine.unload(policy)


async def test_a_full_update_is_carried_across_a_running_reply(
    engine: SglangEngine, tiny_model: Path, tmp_path: Path
) -> None:
    other = make_model(tmp_path / "other", seed=1)
    lineage = new_id()
    old, new = (
        PolicyRef(lineage_id=lineage, version=version, kind=PolicyKind.FULL, uri=str(path))
        for version, path in ((0, tiny_model), (1, other))
    )
    await engine.load(old)
    try:
        chunks = []
        request = ask(Sampling(temperature=1.0, max_tokens=200, logit_bias={2: -100.0}), policy=old)
        async for chunk in engine.generate(request):
            chunks.append(chunk)
            if len(chunks) == 5:
                assert await engine.load(new) > 0
        result = whole(chunks)
        assert result.finish is not None
        before, after = result.finish.spans
        assert (before.version, after.version) == (0, 1)
        assert (before.start, before.end, after.end) == (0, after.start, 200)
        assert 5 <= before.end < 200
        assert len(result.logprobs) == 200
        missing = PolicyRef(
            lineage_id=lineage, version=2, kind=PolicyKind.FULL, uri=str(tmp_path / "missing")
        )
        with pytest.raises(EngineRejected):
            await engine.load(missing)
        # What it says of its weights after that is believed by nobody, until some are read again.
        assert (await engine.status()).weight_version == IN_DOUBT
        doubtful = await reply(engine, ask(policy=new))
        assert doubtful.finish is not None
        assert (doubtful.finish.spans, doubtful.finish.detail) == ((), "version_unknown")
        await engine.restore(new)
        fresh = await reply(engine, ask(policy=new))
        assert fresh.finish is not None
        assert fresh.finish.spans == (VersionSpan(1, 0, len(fresh.ids)),)
    finally:
        await engine.restore(old)


async def test_a_paused_engine_says_so_and_holds_new_requests_without_a_word(
    engine: SglangEngine, engine_url: str
) -> None:
    async with asyncio.timeout(60):
        # It may sample tokens and yet be busy with its own start.
        while (await engine.status()).paused:
            await asyncio.sleep(0.1)
    await post(engine_url, "pause_generation", mode="retract")
    waits = asyncio.create_task(reply(engine, ask()))
    try:
        # At once, though `/health` would not answer for twenty seconds.
        async with asyncio.timeout(19):
            status = await engine.status()
        assert (status.ready, status.paused) == (True, True)
        done, _ = await asyncio.wait([waits], timeout=0.5)
        assert not done
    finally:
        await engine.resume()
    assert len((await waits).ids) > 0
    assert not (await engine.status()).paused


async def test_what_an_engine_says_of_its_weights_after_a_refusal_is_wrong(
    engine: SglangEngine, engine_url: str, tiny_model: Path, tmp_path: Path
) -> None:
    """Paused in place with a request under way, a flush is refused and the weights have changed."""
    lineage = new_id()
    old, new = (
        PolicyRef(lineage_id=lineage, version=version, kind=PolicyKind.FULL, uri=str(path))
        for version, path in ((0, tiny_model), (1, make_model(tmp_path / "other", seed=1)))
    )
    await engine.restore(old)
    before = await engine.score(PROMPT, 1, old)
    long = Sampling(temperature=1.0, max_tokens=300, logit_bias={2: -100.0})
    try:
        chunks = []
        async for chunk in engine.generate(ask(long, policy=old)):
            chunks.append(chunk)
            if len(chunks) != 3:
                continue
            await post(engine_url, "pause_generation", mode="in_place")
            status, said = await post(
                engine_url,
                "update_weights_from_disk",
                model_path=new.uri,
                weight_version=f"{lineage.hex}-v1",
                flush_cache=True,
            )
            assert (status, "not flushed" in said) == (400, True)
            assert (await engine.status()).weight_version == f"{lineage.hex}-v0"
            await engine.resume()
        finish = whole(chunks).finish
        assert finish is not None
        assert [span.version for span in finish.spans] == [0, 1]
        # So to load the version that it says it has is not enough; to restore it is.
        await engine.load(old)
        assert await engine.score(PROMPT, 1, old) != pytest.approx(before, abs=0.1)
    finally:
        await engine.restore(old)
    assert await engine.score(PROMPT, 1, old) == pytest.approx(before, abs=1e-4)


async def test_a_checksum_tells_weights_apart(
    engine: SglangEngine, tiny_model: Path, tmp_path: Path
) -> None:
    lineage = new_id()
    old, new = (
        PolicyRef(lineage_id=lineage, version=version, kind=PolicyKind.FULL, uri=str(path))
        for version, path in ((0, tiny_model), (1, make_model(tmp_path / "other", seed=1)))
    )
    found = []
    for policy in (old, new, old):
        await engine.restore(policy)
        found.append(await engine.checksum())
    assert None not in found
    assert found[0] == found[2] != found[1]


@pytest.mark.sglang
@pytest.mark.parametrize("kind", [PolicyKind.LORA, PolicyKind.FULL])
async def test_keys_and_values_of_old_weights_are_never_reused(
    sglang_url: str, tiny_model: Path, tmp_path: Path, kind: PolicyKind
) -> None:
    """A long beginning that the version before has cached, against the new weights by torch."""
    lineage = new_id()
    make = make_adapter if kind is PolicyKind.LORA else make_model
    versions = [
        PolicyRef(
            lineage_id=lineage, version=n, kind=kind, uri=str(make(tmp_path / f"v{n}", seed=n))
        )
        for n in (1, 2)
    ]
    engine = SglangEngine(EngineSettings(name="real", url=sglang_url))
    prompt = tuple(7 * place % 380 for place in range(300))
    try:
        for policy in versions:
            await engine.load(policy)
            first = await reply(engine, ask(policy=policy, prompt=prompt))
            again = await reply(engine, ask(policy=policy, prompt=prompt))
            for found in (first, again):
                ids = [*prompt, *found.ids]
                truth = torch_scores(tiny_model, policy, ids)[len(prompt) - 1 :]
                assert list(found.logprobs) == pytest.approx(truth, abs=1e-3)
            assert first.finish is not None
            assert again.finish is not None
            # It does cache: what the version before had left was not taken.
            assert (first.finish.cached_tokens, again.finish.cached_tokens > 250) == (0, True)
    finally:
        for policy in versions:
            await engine.unload(policy)
        if kind is PolicyKind.FULL:
            base = PolicyRef(lineage_id=lineage, version=0, kind=kind, uri=str(tiny_model))
            await engine.restore(base)
        await engine.close()


def torch_scores(model: Path, policy: PolicyRef, ids: Sequence[int]) -> list[float]:
    """Log-probabilities of ids[1:], by transformers and peft."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    assert policy.uri is not None
    if policy.kind is PolicyKind.LORA:
        base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
        net = PeftModel.from_pretrained(base, policy.uri)
    else:
        net = AutoModelForCausalLM.from_pretrained(policy.uri, dtype=torch.float32)
    with torch.no_grad():
        log = torch.log_softmax(net.eval()(torch.tensor([list(ids)])).logits[0], -1)
    return [float(log[at - 1, ids[at]]) for at in range(1, len(ids))]


async def post(url: str, path: str, **body: object) -> tuple[int, str]:
    """What no client of ours would ask for."""
    async with aiohttp.ClientSession() as http, http.post(f"{url}/{path}", json=body) as answer:
        return answer.status, await answer.text()


async def test_a_server_that_is_not_there(tmp_path: Path) -> None:
    dead = SglangEngine(EngineSettings(name="dead", url=f"http://127.0.0.1:{free_port()}"))
    for failing in (
        collect(dead, ask()),
        dead.score(PROMPT, 1, BASE),
        dead.load(lora(1, tmp_path)),
        dead.unload(lora(1, tmp_path)),
        dead.status(),
    ):
        with pytest.raises(EngineUnavailable, match="cannot be reached"):
            await failing
    await dead.close()
    with pytest.raises(EngineUnavailable, match="closed"):
        await dead.status()


@pytest.mark.sglang
async def test_a_grammar_binds_the_reply(sglang_url: str, tokenizer: Tokenizer) -> None:
    engine = SglangEngine(EngineSettings(url=sglang_url))
    schema = {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}},
        "required": ["ok"],
        "additionalProperties": False,
    }
    sampling = Sampling(temperature=1.0, max_tokens=200, grammar={"json_schema": schema})
    result = await reply(engine, ask(sampling))
    text = tokenizer.decode(list(result.ids), skip_special_tokens=False)
    assert json.loads(text.removesuffix(IM_END))["ok"] in (True, False)
    broken = Sampling(max_tokens=4, grammar={"json_schema": "{nope"})
    with pytest.raises(EngineRejected, match="grammar"):
        await reply(engine, ask(broken))
    await engine.close()


@pytest.mark.sglang
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("adapted", [False, True])
async def test_logprobs_are_those_of_torch(
    sglang_url: str, tiny_model: Path, tmp_path: Path, temperature: float, adapted: bool
) -> None:
    """log_softmax(logits / temperature) of transformers and peft, on the ids that were sampled."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    engine = SglangEngine(EngineSettings(url=sglang_url))
    policy = lora(1, tmp_path) if adapted else BASE
    await engine.load(policy)
    result = await reply(
        engine, ask(Sampling(temperature=temperature, max_tokens=40), policy=policy)
    )
    await engine.unload(policy)
    await engine.close()

    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    if adapted:
        model = PeftModel.from_pretrained(model, policy.uri)
    ids = torch.tensor([[*PROMPT, *result.ids]])
    with torch.no_grad():
        logits = model(ids).logits[0, len(PROMPT) - 1 : -1].double()
    expected = torch.log_softmax(logits / temperature, dim=-1)
    expected = expected.gather(1, torch.tensor(result.ids)[:, None])[:, 0]
    assert list(result.logprobs) == pytest.approx(expected.tolist(), abs=2e-4)
