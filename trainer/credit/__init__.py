"""Advantages: how much better a reply did than was to be expected. Pure, and without torch."""

from __future__ import annotations

from trainer.credit.assign import Credit, assign, rule_shares
from trainer.credit.binary import binary
from trainer.credit.discount import discounted, returns
from trainer.credit.group import Groups, grouped
from trainer.credit.running import Baseline, Running

__all__ = [
    "Baseline",
    "Credit",
    "Groups",
    "Running",
    "assign",
    "binary",
    "discounted",
    "grouped",
    "returns",
    "rule_shares",
]
