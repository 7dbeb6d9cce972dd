"""The bench of learning: what users want, what is scored, and a run that goes on where it was."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from bench import learning, learning_staleness
from bench.learning import QUICK, figures, table
from bench.learning_arms import ARMS, config
from bench.learning_figures import area, arm, cells, curve, picture
from bench.learning_kept import Kept
from bench.learning_model import Policy
from bench.learning_quality import ANSWERS
from bench.learning_run import Plan, Run, Stage
from bench.learning_staleness import LAG, OURS, UNCORRECTED, Bench, compared, sign_test
from bench.learning_turns import converse
from bench.learning_users import PEOPLE, ends_with_number, polite, within
from gateway.demo.questions import FACTS
from tests.tiny_llama import make_llama


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """A model this small gains nothing from a second one, which waits for it all the while."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_users_like_what_they_say_they_like() -> None:
    assert within(3)("One two three.", True)
    assert not within(3)("One two three four.", True)
    assert not within(3)("One two", False)
    assert polite("Thank you for asking. It rains.", True)
    assert not polite("It rains.", True)
    assert ends_with_number("The sum is 15.", True)
    assert ends_with_number("There are twelve", True)
    assert not ends_with_number("15 is the sum", True)
    assert not ends_with_number("The sum is 15.", False)
    kinds = [one.name.split("-")[0] for one in PEOPLE]
    assert {kinds.count(kind) for kind in kinds} == {3}


def test_quality_and_both_ends_are_asked_often_enough() -> None:
    for plan in (Plan(), QUICK):
        assert min(plan.count(0), plan.count(plan.versions)) >= 64
    assert len(FACTS) >= 20
    assert len({question for question, _ in ANSWERS}) == len(ANSWERS) >= 30


def record(*scores: tuple[str, float], facts: float = 0.5, depth: int = 0) -> dict[str, Any]:
    turns = [
        {"person": who, "question": "Why?", "score": score, "depth": depth} for who, score in scores
    ]
    return {"turns": turns, "quality": {"facts_right": facts, "answer_logprob": -2.0}}


def test_curves_pool_version_0_with_the_control_and_look_at_first_turns_only() -> None:
    control = [record(("a", -1.0), ("b", 1.0)), record(("a", -1.0), ("b", -1.0))]
    trained = [control[0], record(("a", 1.0), ("b", 1.0))]
    trained[1]["turns"] += record(("a", -1.0), depth=1)["turns"]
    assert curve(cells(trained, control)) == [-0.5, 1.0]
    assert curve(cells(trained, None)) == [0.0, 1.0]
    found = arm({1: trained}, {1: control})
    assert found["seeds"] == [[-0.5, 1.0]]
    assert found["auc"][1] == pytest.approx(0.25)
    assert found["facts_right"] == [0.5, 0.5]
    own = arm({1: control}, {1: control})
    assert own["seeds"] == [[-0.5, -1.0]]


def test_areas_are_trapezoids_with_an_interval_over_cells() -> None:
    flat = [(("a", "q"), version, 1.0) for version in range(4)]
    assert (area(flat).low, area(flat).mean, area(flat).high) == (1.0, 1.0, 1.0)
    # -1, 0, 1, 1 : (-1/2 + 1/2 + 1) / 3
    rising = [(("a", "q"), version, score) for version, score in enumerate((-1.0, 0.0, 1.0, 1.0))]
    assert area(rising).mean == pytest.approx(1 / 3)
    # Of two cells, one always 1 and one always -1, a draw holds both ones with chance 1/4.
    split = [((who, "q"), v, s) for who, s in (("a", 1.0), ("b", -1.0)) for v in range(2)]
    found = area(split)
    assert (found.low, found.mean, found.high) == (-1.0, 0.0, 1.0)


def test_the_lag_is_that_of_the_plan() -> None:
    plan = Plan(versions=5, batch=8, ends=64, lag=1)
    assert [plan.source(version) for version in range(1, 6)] == [
        (0, 0), (0, 1), (1, 0), (2, 0), (3, 0),
    ]  # fmt: skip
    assert [plan.count(version) for version in range(6)] == [64, 8, 8, 8, 8, 64]


@pytest.mark.parametrize(("signs", "p"), [((5, 0), 2 / 32), ((3, 1), 10 / 16), ((2, 2), 1.0)])
def test_the_sign_test_by_hand(signs: tuple[int, int], p: float) -> None:
    ups, downs = signs
    assert sign_test([1.0] * ups + [-1.0] * downs + [0.0]) == pytest.approx(p)


def test_what_is_sampled_scores_as_it_was_sampled(tiny_model: Path) -> None:
    """Padded beside a longer prompt and with a cache, or alone and at once: the same numbers."""
    policy = Policy(tiny_model)
    prompts = [policy.ids("Thanks"), policy.ids("What is the capital of France?")]
    for prompt, reply in zip(prompts, policy.generate(prompts, 12, 1.0, 3), strict=True):
        assert len(reply.ids) == len(reply.logprobs) <= 12
        assert policy.score(prompt, reply.ids) == pytest.approx(reply.logprobs, abs=1e-4)


def test_conversations_are_paired_and_go_on_in_the_same_ids(tiny_model: Path) -> None:
    policy, teacher = Policy(tiny_model), Policy(tiny_model)
    turns = converse(policy, teacher, 0, 18, "1/0")
    assert turns == converse(policy, teacher, 0, 18, "1/0")
    later = [turn for turn in turns if turn.depth == 1]
    assert later
    first = {turn.session: turn for turn in turns if turn.depth == 0}
    for turn in later:
        before = first[turn.session]
        ids = (*before.prompt_ids, *before.ids)
        assert turn.prompt_ids[: len(ids)] == ids
    for turn in turns:
        assert (turn.taught is None) == (turn.score > 0)
        assert turn.taught is None or len(turn.taught) == len(turn.ids)


@pytest.mark.parametrize("name", ["combined", "openclaw"])
def test_a_run_that_was_cut_off_ends_as_one_that_was_not(
    tiny_model: Path, tmp_path: Path, name: str
) -> None:
    plan = Plan(versions=2, batch=4, ends=4, lag=1)
    whole, cut = Run(name, 1, plan, tmp_path / "whole"), Run(name, 1, plan, tmp_path / "cut")
    assert whole.go(Stage(tiny_model), lambda: False)
    calls = iter((False, False, True))
    assert not cut.go(Stage(tiny_model), lambda: next(calls))
    assert cut.missing == [2]
    assert cut.go(Stage(tiny_model), lambda: False)
    for version in range(3):
        one, other = whole.record(version), cut.record(version)
        assert one is not None
        assert other is not None
        assert len(one["turns"]) == len(other["turns"])
        for turn, same in zip(one["turns"], other["turns"], strict=True):
            assert turn["reply"] == same["reply"]
            assert turn["score"] == same["score"]
            assert turn["ids"] == same["ids"]
            # The order of sums differs from run to run.
            for told in ("logprobs", "taught"):
                assert turn[told] == pytest.approx(same[told], abs=1e-4)
        assert one["quality"] == pytest.approx(other["quality"], abs=1e-4)
    assert one is not None
    assert one["metrics"]["lag_token_mean"] == 1
    picture({name: arm({1: [whole.record(v) for v in range(3)]}, {})}, tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 0


def test_what_is_done_is_kept_and_of_another_plan_not_counted(tmp_path: Path) -> None:
    plan = Plan(versions=1, batch=2, ends=2)
    records = [record(("a", -1.0), ("b", 1.0)), record(("a", 1.0), ("b", 1.0), facts=0.6)]
    records[1]["turns"] += record(("a", -1.0), depth=1)["turns"]
    path = Kept((tmp_path / "build",)).write("binary", 1, plan, records)
    assert path.parent == tmp_path / "build"
    moved = tmp_path / "in_git" / path.name
    moved.parent.mkdir()
    path.rename(moved)
    kept = Kept((tmp_path / "build", moved.parent))
    found = kept.read("binary", 1, plan)
    assert found == [records[0], record(("a", 1.0), ("b", 1.0), facts=0.6)]
    assert arm({1: found}, {}) == arm({1: records}, {})
    assert kept.read("binary", 2, plan) is None
    assert kept.read("opd", 1, plan) is None
    assert kept.read("binary", 1, replace(plan, batch=3)) is None
    assert kept.read("binary", 1, replace(plan, rate=3e-5)) is None
    Kept((tmp_path / "build",)).write("none", 1, plan, records)
    assert kept.read("none", 1, replace(plan, rate=3e-5)) == found
    assert kept.read("none", 1, replace(plan, lag=2)) is None
    told = json.loads(moved.read_text())
    assert told["settings"]["loss"]["opsm_delta"] == 0.2
    told["settings"]["loss"]["opsm_delta"] = 0.1
    moved.write_text(json.dumps(told))
    assert kept.read("binary", 1, plan) is None


def test_arms_are_compared_on_the_seeds_that_all_have() -> None:
    one, other = [record(("a", -1.0))], [record(("a", 1.0))]
    found = figures({"none": {1: one, 2: one}, "binary": {1: other}})
    assert {name: len(of["seeds"]) for name, of in found.items()} == {"none": 1, "binary": 1}
    assert figures({}) == {}


def test_a_curve_whose_quality_falls_on_the_way_has_not_kept_it() -> None:
    """Answers by at most 0.1 nat, facts by at most two of twenty, whatever comes after."""

    def shown(facts: list[float], answers: list[float]) -> Any:
        one = {
            "seeds": [[-0.5, 0.0, 0.5]], "auc": [-0.1, 0.0, 0.1], "facts_right": facts,
            "answer_logprob": answers,
        }  # fmt: skip
        return list(table({"one": one}).columns[-1].cells)

    assert shown([0.5, 0.41, 0.41], [-2.0, -2.09, -2.05]) == ["kept"]
    assert shown([0.8, 0.7], [-2.0, -2.1]) == ["kept"]  # though 0.8 - 0.1 is above 0.7 in binary
    assert shown([0.5, 0.41, 0.5], [-2.0, -2.2, -2.0]) == ["lost"]
    assert shown([0.5, 0.3, 0.5], [-2.0, -2.0, -2.0]) == ["lost"]


@pytest.mark.parametrize("quick", [True, False])
def test_what_is_written_and_said(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    quick: bool,
) -> None:
    rising = [record(("a", -1.0), ("b", 1.0)), record(("a", 1.0), ("b", 1.0), facts=0.6)]
    asked: list[tuple[Any, ...]] = []

    def played(arms: Any, seeds: Any, plan: Plan, *_: Any) -> dict[str, dict[int, Any]]:
        asked.append((tuple(arms), tuple(seeds), plan))
        control = [rising[0], rising[0]]
        return {n: dict.fromkeys(seeds, control if n == "none" else rising) for n in arms}

    pairs = {"lag": 4, "better": 15, "worse": 5, "sign_test_p": 0.04}
    monkeypatch.setattr(learning, "played", played)
    monkeypatch.setattr(learning, "compared", lambda *_, **__: pairs)
    monkeypatch.setattr(learning, "ensure_model", lambda: tmp_path)
    monkeypatch.setattr(learning, "OUT", tmp_path)
    for name in ("QUICK", "SEEDS", "TUNE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("THREADS", "1")
    if quick:
        monkeypatch.setenv("QUICK", "1")
    learning.main()
    arms, seeds = (("none", "combined"), (1,)) if quick else (ARMS, (1, 2, 3))
    assert asked == [(arms, seeds, QUICK if quick else Plan())]
    found = json.loads((tmp_path / "learning.json").read_text())
    assert found.keys() == {"arms", "staleness"}
    assert found["staleness"] == pairs
    assert tuple(found["arms"]) == arms
    one = found["arms"]["combined"]
    assert one.keys() == {"seeds", "auc", "facts_right", "answer_logprob"}
    assert one["seeds"] == [[0.0, 1.0]] * len(seeds)
    low, middle, high = one["auc"]
    assert low <= middle <= high
    assert middle == pytest.approx(0.5)
    assert one["facts_right"] == pytest.approx([0.5, 0.6])
    assert one["answer_logprob"] == pytest.approx([-2.0, -2.0])
    assert (tmp_path / "learning.png").read_bytes().startswith(b"\x89PNG")
    said = capsys.readouterr()
    assert all(name in said.out for name in (*arms, "0.500 [", "kept", "sign_test_p"))
    assert "not done yet" not in said.err


def test_seeds_of_the_lag_are_compared_where_they_were_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    climbed: list[int] = []

    def climb(_: Path, loss: Any, seed: int) -> list[float]:
        climbed.append(seed)
        # Ours is better by 0.5 but with seed 3, where it is worse by as much.
        return [0.0, 1.0 if (loss is OURS) != (seed == 3) else 0.0]

    monkeypatch.setattr(learning_staleness, "climb", climb)
    calls = iter((False, False, True))
    assert compared(tmp_path, 4, lambda: next(calls)) == {}
    assert climbed == [0, 0, 1, 1]
    found = compared(tmp_path, 4)
    assert climbed == [0, 0, 1, 1, 2, 2, 3, 3]
    assert (found["lag"], found["seeds"], found["better"], found["worse"]) == (4, 4, 3, 1)
    assert found["ours"] == [0.5, 0.5, 0.5, 0.0]
    assert found["uncorrected"] == [0.0, 0.0, 0.0, 0.5]
    assert found["mean_difference"] == pytest.approx(0.25)
    assert found["sign_test_p"] == pytest.approx(10 / 16)


def test_only_what_is_trained_on_is_taught(tiny_model: Path, tmp_path: Path) -> None:
    """Version 0 is every arm's; the last versions are scored and no more."""
    assert [Plan(versions=3, lag=1).trains(version) for version in range(4)] == [
        True, True, False, False,
    ]  # fmt: skip
    plan = Plan(versions=2, batch=9, ends=9, lag=0)
    for name, taught in (("binary", False), ("opd", True)):
        run = Run(name, 1, plan, tmp_path)
        assert run.go(Stage(tiny_model), lambda: False)
        records = [run.record(version) for version in range(3)]
        for version, found in enumerate(records):
            assert found is not None
            told = [turn["taught"] is not None for turn in found["turns"]]
            wanted = version == 0 or (taught and version == 1)
            liked = [turn["score"] > 0 for turn in found["turns"]]
            assert told == [wanted and not pleased for pleased in liked]
            assert version < 2 or {turn["depth"] for turn in found["turns"]} == {0}


def test_the_recipe_without_precautions_has_none() -> None:
    loss = config("openclaw").loss
    assert (loss.importance, loss.opsm_delta, loss.veto, loss.kl_coef) == ("none", None, None, 0)
    assert {config(name).optimizer.lr for name in ARMS} == {config("binary").optimizer.lr}


def test_a_tiny_model_trains_on_what_is_four_versions_old(tmp_path: Path) -> None:
    """Both learn from the same draws first; only one of them weighs them by what has changed."""
    directory = make_llama(tmp_path / "model")
    ours, bare = (Bench(directory, loss, 3) for loss in (OURS, UNCORRECTED))
    for number in range(2 * LAG + 1):
        (one, metrics), (other, plain) = ours.step(), bare.step()
        if number < LAG + 1:
            assert one == other
    assert ours.version == bare.version == LAG + 1
    assert metrics["lag_token_mean"] == plain["lag_token_mean"] == LAG
    assert metrics["importance_mean"] != pytest.approx(1, abs=1e-3)
