"""A stage for sessions: an engine that is watched, and a gateway for each chat template."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from gateway.config import Settings
from tests.proof.sessions.audit import Findings, Reference, audit
from tests.proof.sessions.plan import TEMPLATES, Plan
from tests.proof.sessions.play import Played, play
from tests.proof.sessions.talker import DROPPING, KEEPING
from tests.proof.sessions.witness import Witness, damages
from tests.running import gateway_values, make_keys, running_gateway
from tests.tiny_model import TEMPLATE

_TEMPLATES = {"keeping": KEEPING, "dropping": DROPPING, "plain": TEMPLATE}
_READ = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")
_AT_ONCE = 8


async def proved(
    database_url: str,
    model: Path,
    engine_url: str,
    home: Path,
    plans: Sequence[Plan],
    *,
    damaged: bool = False,
) -> Findings:
    """Play sessions and hold every stored turn against the engine's own bytes.

    Every other generation makes the engine say which prompt ids it saw; the rest go as they come.
    If `damaged`, every third reply is changed on its way to the gateway, by each damage in turn.
    """
    kinds = itertools.cycle([kind for name in damages() for kind in (name, "", "")])
    played, rows = Played(), []
    async with Witness(engine_url) as witness, AsyncExitStack() as stack:
        # An id's end is random.
        witness.asks = lambda rid: not damaged and int(rid[31], 16) % 2 == 0
        witness.damage = lambda _: next(kinds) if damaged else ""
        keys = await make_keys(database_url, "tiny")
        for name in TEMPLATES:
            asked = [plan for plan in plans if plan.template == name]
            directory = _with_template(model, home / name, _TEMPLATES[name])
            values = gateway_values(database_url, directory, witness.url, home / name)
            gateway = await stack.enter_async_context(running_gateway(Settings(**values), keys))
            found = await play(gateway.url, keys.agent, asked, at_once=_AT_ONCE)
            played.said |= found.said
            played.asked += found.asked
            vocab = gateway.services.tokenizer.facts.vocab_size
        rows = await gateway.rows("SELECT * FROM turns ORDER BY id")
        findings = await audit(
            rows, witness.exchanges, played, engine_url, reference(model), last_id=vocab - 1
        )
    findings.counts["sessions"] = len(plans)
    findings.counts["replies asked for"] = played.asked
    if played.asked != len(rows):
        findings.wrong.append(f"{played.asked} replies were asked for, {len(rows)} are stored")
    return findings


def reference(model: Path) -> Reference:
    """The same weights under transformers."""
    loaded = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()

    @torch.no_grad()
    def score(ids: Sequence[int], temperature: float) -> list[float]:
        logits: Any = loaded(torch.tensor([list(ids)])).logits[0, :-1]
        log = torch.log_softmax(logits / (temperature or 1.0), -1)
        found: list[float] = log.gather(1, torch.tensor(list(ids[1:])).unsqueeze(1))[:, 0].tolist()
        return found

    return score


def _with_template(model: Path, directory: Path, template: str) -> Path:
    """What a gateway reads of a model, with another template."""
    directory.mkdir(parents=True)
    for name in _READ:
        shutil.copy(model / name, directory / name)
    (directory / "chat_template.jinja").write_text(template)
    return directory
