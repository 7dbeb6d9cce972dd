"""The arithmetic of `make bench-train`, on figures worked out by hand."""

from __future__ import annotations

from typing import Any

from bench.train import TOKENS, summary, table


def runs(*pairs: tuple[float, float]) -> list[dict[str, float]]:
    return [{"seconds": seconds, "peak_mb": peak} for seconds, peak in pairs]


def test_ratios_are_medians_against_the_same_weights() -> None:
    found = {
        "torch_lora": runs((2.0, 100.0), (4.0, 300.0), (3.0, 150.0)),
        "trl_lora": runs((6.0, 600.0)),
        "torch_full": runs((8.0, 500.0)),
        "trl_full": runs((4.0, 1000.0)),
        "hf_full": runs((16.0, 2000.0)),
    }
    report = summary(found, "tiny")
    assert TOKENS == 4096
    assert report["tokens_per_s"]["torch_full"] == 512
    assert report["ratios"] == {
        "torch_lora": {"baseline": "trl_lora", "tokens_per_s": 2.0, "peak_mb": 0.25},
        "torch_full": {"baseline": "trl_full", "tokens_per_s": 0.5, "peak_mb": 0.5},
    }
    assert table(report).row_count == 5


def test_where_trl_does_not_run_the_plain_loop_is_the_baseline() -> None:
    found: dict[str, Any] = {"megatron_full": runs((2.0, 10.0)), "hf_full": runs((4.0, 40.0))}
    assert summary(found, "tiny")["ratios"] == {
        "megatron_full": {"baseline": "hf_full", "tokens_per_s": 2.0, "peak_mb": 0.25}
    }
