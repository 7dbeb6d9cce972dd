"""What correcting for stale samples is worth, exactly: a softmax bandit, no sampling noise.

A policy over K arms climbs its true gradient; samples come from where it was `lag` steps ago. The
trainer's own loss gives the gradient of each arm, so the expectation over the arms that the old
policy draws is a sum, and its bias against the true gradient is exact. `python -m bench.bandit`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import torch
from torch import Tensor

from trainer.config import LossSettings
from trainer.losses import Size, Tokens, policy_loss

ARMS, BANDITS, STEPS, RATE = 10, 100, 32, 1.0
LAGS = (0, 1, 2, 4, 8, 16)
BATCH = 16
OUT = Path("build/bench/bandit.json")

#: No KL and no masks, but for the last, which is the default recipe's surrogate.
_BARE = {"kl_coef": 0.0, "aggregate": "token_mean", "opsm_delta": None, "veto": None}
CORRECTIONS: Mapping[str, LossSettings] = {
    "none": LossSettings(**_BARE, importance="none"),
    "untruncated": LossSettings(**_BARE, importance_cap=1e9),
    "truncated at 2": LossSettings(**_BARE),
    "masked at 2": LossSettings(**_BARE, importance="mask"),
    "default": LossSettings(kl_coef=0.0, aggregate="token_mean"),
}


@dataclass(frozen=True, slots=True)
class Bandit:
    """`rewards` [K]; the policy is softmax of `logits` [K], and was softmax of `stale` [K]."""

    rewards: Tensor
    logits: Tensor
    stale: Tensor

    @property
    def true_gradient(self) -> Tensor:
        """∇ E[r] = π (r - E[r]) [K]."""
        policy = self.logits.softmax(-1)
        return policy * (self.rewards - policy @ self.rewards)


def bandit(seed: int, lag: int) -> Bandit:
    """One that has climbed for `STEPS` steps; `lag` of them are not known to what sampled."""
    generator = torch.Generator().manual_seed(seed)
    rewards, logits = torch.randn(2, ARMS, generator=generator, dtype=torch.float64)
    path = [logits]
    for _ in range(STEPS):
        now = path[-1]
        path.append(now + RATE * Bandit(rewards, now, now).true_gradient)
    return Bandit(rewards, path[-1], path[-1 - lag])


def gradients(one: Bandit, settings: LossSettings) -> Tensor:
    """What the loss would have the logits do for each arm that may be drawn: [K, K]."""
    behaviour = one.stale.log_softmax(-1)
    expected = behaviour.exp() @ one.rewards
    loss = policy_loss(settings, Size(1, 1))
    rows = []
    for arm in range(len(one.rewards)):
        logits = one.logits.clone().requires_grad_()
        current = logits.log_softmax(-1)[arm : arm + 1]
        nothing = torch.zeros(1, dtype=torch.float64)
        value = loss(
            Tokens(
                current=current,
                proximal=current.detach(),
                behaviour=behaviour[arm : arm + 1],
                advantages=(one.rewards[arm] - expected)[None],
                entropy=nothing,
                samples=torch.zeros(1, dtype=torch.int64),
                lags=nothing,
            )
        )
        (slope,) = torch.autograd.grad(value, logits)
        rows.append(-slope)
    return torch.stack(rows)


def errors(one: Bandit, settings: LossSettings) -> dict[str, float]:
    """Of the expected gradient (`bias`) and of a batch's (`rmse`), relative to the true one's norm.

    `cosine` is between the expected and the true gradient.
    """
    each, drawn, true = gradients(one, settings), one.stale.softmax(-1), one.true_gradient
    mean = drawn @ each
    variance = float(drawn @ (each - mean).square().sum(-1))
    bias, norm = float((mean - true).norm()), float(true.norm())
    return {
        "bias": bias / norm,
        "rmse": (bias**2 + variance / BATCH) ** 0.5 / norm,
        "cosine": float(torch.cosine_similarity(mean, true, 0)),
    }


def average(lag: int, settings: LossSettings, bandits: int = BANDITS) -> dict[str, float]:
    """The mean of `errors` over bandits."""
    found = [errors(bandit(seed, lag), settings) for seed in range(bandits)]
    return {name: fmean(one[name] for one in found) for name in found[0]}


def effective(lag: int, bandits: int = BANDITS) -> float:
    """The effective sample size of untruncated weights as a share of what was drawn."""
    shares = []
    for seed in range(bandits):
        one = bandit(seed, lag)
        drawn, weights = one.stale.softmax(-1), one.logits.softmax(-1) / one.stale.softmax(-1)
        shares.append(float((drawn @ weights) ** 2 / (drawn @ weights.square())))
    return fmean(shares)


def table(found: Mapping[str, Mapping[str, Mapping[str, float]]]) -> str:
    lines = [f"{'correction':<15} {'':<7}" + "".join(f"{f'lag {lag}':>9}" for lag in LAGS)]
    for name, lags in found.items():
        for what in ("bias", "rmse", "cosine"):
            cells = "".join(f"{lags[str(lag)][what]:>9.3f}" for lag in LAGS)
            lines.append(f"{name:<15} {what:<7}{cells}")
    return "\n".join(lines)


def main() -> None:
    found = {
        name: {str(lag): average(lag, settings) for lag in LAGS}
        for name, settings in CORRECTIONS.items()
    }
    sizes = {str(lag): effective(lag) for lag in LAGS}
    OUT.parent.mkdir(parents=True, exist_ok=True)
    settings = {"arms": ARMS, "bandits": BANDITS, "steps": STEPS, "rate": RATE, "batch": BATCH}
    OUT.write_text(json.dumps({"settings": settings, "corrections": found, "ess": sizes}, indent=1))
    print(table(found))
    print("effective sample size  " + "".join(f"{sizes[str(lag)]:>9.3f}" for lag in LAGS))
    print(f"Relative to the norm of the true gradient; rmse of a batch of {BATCH}.")
    print(f"{OUT} is written", file=sys.stderr)


if __name__ == "__main__":
    main()
