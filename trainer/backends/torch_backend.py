"""Hugging Face causal models with a peft LoRA adapter, on one CPU or GPU.

The reference policy is the same model with the adapter off: no second copy. With one optimizer
step a batch the proximal policy is the current one detached: no forward pass of its own. The
trunk runs on whole sequences, the output layer only where a token was sampled, a chunk at a time,
so that logits of a long sequence are never held whole.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from gateway.device import Device
from gateway.errors import ConfigError, NonFinite
from gateway.records import PolicyKind
from trainer.backends.base import Probe, StepAbandoned, StepOutcome
from trainer.backends.vocabulary import Vocabulary
from trainer.config import TrainerConfig
from trainer.losses import TokenLoss, Tokens, joined
from trainer.packing import MicroBatch, PackedBatch, group_by_length

_MOMENTS = ("exp_avg", "exp_avg_sq", "step")


@dataclass(frozen=True, slots=True)
class _Snapshot:
    weights: dict[str, Tensor]
    moments: dict[str, dict[str, Tensor]]
    steps: int


class TorchBackend:
    """LoRA on a frozen model; see `trainer.backends.base.Backend`. Nothing in a step is random."""

    kind = PolicyKind.LORA

    def __init__(self, model: Path, config: TrainerConfig, device: Device) -> None:
        """Load the base model. Raises ConfigError where it cannot be trained exactly."""
        self._config, self._device = config, device
        if device == "cpu" and config.threads:
            torch.set_num_threads(config.threads)
        self._causal = _load(model, config, device)
        if "lm_head" in config.lora.target_modules:
            raise ConfigError("trainer.lora.target_modules: the output layer carries no adapter")
        lora = LoraConfig(
            task_type="CAUSAL_LM",
            r=config.lora.rank,
            lora_alpha=config.lora.alpha,
            target_modules=list(config.lora.target_modules),
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            self._peft = get_peft_model(self._causal, lora)
        self._peft.eval()
        self._trunk = getattr(self._causal, self._causal.base_model_prefix)
        self._head = self._causal.get_output_embeddings()
        self._vocabulary = Vocabulary(self._head, config.head_chunk)
        self._trained = {
            name: weight for name, weight in self._peft.named_parameters() if weight.requires_grad
        }
        self._fresh = {name: weight.detach().clone() for name, weight in self._trained.items()}
        self._steps = 0
        self._optimizer = self._new_optimizer()

    @property
    def vocab_size(self) -> int:
        return int(self._head.weight.shape[0])

    @property
    def budget(self) -> int:
        # On a CPU a small one is faster, for the caches, and holds fewer activations.
        return self._config.micro_batch_tokens or (256 if self._device == "cpu" else 16_384)

    @property
    def tolerance(self) -> float:
        return 0.02 if self._head.weight.dtype == torch.float32 else 0.5

    def step(
        self, batch: PackedBatch, loss: TokenLoss, cancelled: Callable[[], bool]
    ) -> StepOutcome:
        seen: list[Tokens] = []
        total = 0.0
        try:
            for micro in batch.micro:
                if cancelled():
                    raise StepAbandoned("the step was asked to end")
                tokens = self._tokens(micro.to(self._device))
                value = loss(tokens)
                value.backward()  # type: ignore[no-untyped-call]
                total += float(value.detach())
                seen.append(tokens.detached())
            weights = list(self._trained.values())
            norm = float(
                torch.nn.utils.clip_grad_norm_(weights, self._config.optimizer.max_grad_norm)
            )
            if not (math.isfinite(norm) and math.isfinite(total)):
                raise NonFinite(f"loss {total}, gradient norm {norm}")
            lr = self._learning_rate()
            for group in self._optimizer.param_groups:
                group["lr"] = lr
            self._optimizer.step()
        finally:
            self._optimizer.zero_grad(set_to_none=True)
        self._steps += 1
        return StepOutcome(loss=total, grad_norm=norm, lr=lr, tokens=joined(seen))

    def snapshot(self) -> object:
        return _Snapshot(
            weights={name: weight.detach().clone() for name, weight in self._trained.items()},
            moments={
                name: {kind: self._optimizer.state[weight][kind].clone() for kind in _MOMENTS}
                for name, weight in self._trained.items()
                if weight in self._optimizer.state
            },
            steps=self._steps,
        )

    @torch.no_grad()
    def rewind(self, snapshot: object) -> None:
        assert isinstance(snapshot, _Snapshot)
        for name, weight in self._trained.items():
            weight.copy_(snapshot.weights[name])
        self._optimizer = self._new_optimizer()
        for name, state in snapshot.moments.items():
            self._optimizer.state[self._trained[name]] = {
                kind: value.clone() for kind, value in state.items()
            }
        self._steps = snapshot.steps

    @torch.no_grad()
    def shrink(self, snapshot: object, share: float) -> None:
        assert isinstance(snapshot, _Snapshot)
        for name, weight in self._trained.items():
            before = snapshot.weights[name]
            weight.copy_(before + share * (weight - before))

    @torch.no_grad()
    def logprobs(self, batch: PackedBatch) -> list[Tensor]:
        return [self._current(micro.to(self._device)) for micro in batch.micro]

    @torch.no_grad()
    def reference_logprobs(self, batch: PackedBatch) -> list[Tensor]:
        with self._peft.disable_adapter():
            return [self._current(micro.to(self._device)) for micro in batch.micro]

    @torch.no_grad()
    def score(self, probes: Sequence[Probe]) -> list[list[float]]:
        scores: list[list[float]] = [[] for _ in probes]
        for group in group_by_length([len(probe.ids) for probe in probes], self.budget):
            width = max(len(probes[index].ids) for index in group)
            ids = torch.zeros(len(group), width, dtype=torch.int64, device=self._device)
            for row, index in enumerate(group):
                ids[row, : len(probes[index].ids)] = torch.tensor(probes[index].ids)
            hidden = self._trunk(input_ids=ids, use_cache=False).last_hidden_state
            for row, index in enumerate(group):
                start, end = probes[index].start, len(probes[index].ids)
                ones = torch.ones(end - start, device=self._device)
                log = self._vocabulary.chosen(
                    hidden[row, start - 1 : end - 1], ids[row, start:end], ones
                )
                scores[index] = log.tolist()
        return scores

    def export(self, directory: Path) -> None:
        state = get_peft_model_state_dict(self._peft, save_embedding_layers=False)
        weights = {name: weight.detach().cpu().contiguous() for name, weight in state.items()}
        save_file(weights, directory / "adapter_model.safetensors", metadata={"format": "pt"})
        self._peft.peft_config["default"].save_pretrained(str(directory))

    def save(self, directory: Path) -> None:
        moments = {
            f"{kind}.{name}": self._optimizer.state[weight][kind].detach().cpu().contiguous()
            for name, weight in self._trained.items()
            if weight in self._optimizer.state
            for kind in _MOMENTS
        }
        save_file(moments, directory / "optimizer.safetensors")
        (directory / "optimizer.json").write_text(json.dumps({"steps": self._steps}))

    def load(self, policy: Path, state: Path) -> None:
        weights = load_file(policy / "adapter_model.safetensors")
        own = get_peft_model_state_dict(self._peft, save_embedding_layers=False)
        if {n: w.shape for n, w in weights.items()} != {n: w.shape for n, w in own.items()}:
            raise ConfigError(f"{policy} is an adapter of another shape than trainer.lora says")
        set_peft_model_state_dict(self._peft, weights)
        self._optimizer = self._new_optimizer()
        for key, value in load_file(state / "optimizer.safetensors").items():
            kind, _, name = key.partition(".")
            weight = self._trained[name]
            on = "cpu" if kind == "step" else self._device
            self._optimizer.state[weight][kind] = value.to(on)
        self._steps = int(json.loads((state / "optimizer.json").read_text())["steps"])

    @torch.no_grad()
    def reset(self) -> None:
        for name, weight in self._trained.items():
            weight.copy_(self._fresh[name])
        self._steps = 0
        self._optimizer = self._new_optimizer()

    def _new_optimizer(self) -> torch.optim.AdamW:
        settings = self._config.optimizer
        return torch.optim.AdamW(
            list(self._trained.values()),
            lr=settings.lr,
            betas=settings.betas,
            eps=settings.eps,
            weight_decay=settings.weight_decay,
        )

    def _learning_rate(self) -> float:
        settings = self._config.optimizer
        return settings.lr * min(1.0, (self._steps + 1) / max(1, settings.warmup_steps))

    def _hidden(self, micro: MicroBatch) -> Tensor:
        """Final hidden states [N, H] from which the sampled tokens are predicted."""
        states = self._trunk(input_ids=micro.ids, use_cache=False).last_hidden_state
        picked: Tensor = states.flatten(0, 1)[micro.places]
        return picked

    def _current(self, micro: MicroBatch) -> Tensor:
        return self._vocabulary.chosen(self._hidden(micro), micro.targets, micro.temperature)

    def _tokens(self, micro: MicroBatch) -> Tokens:
        """What the loss sees of a micro-batch, gradients attached."""
        settings, reference = self._config.loss, None
        if settings.kl_coef:
            with torch.no_grad(), self._peft.disable_adapter():
                reference = self._hidden(micro)
        terms = self._vocabulary.terms(
            self._hidden(micro),
            reference,
            micro.targets,
            micro.temperature,
            exact=settings.kl == "exact",
            undecided=settings.entropy_coef > 0,
        )
        return Tokens(
            current=terms.current,
            proximal=terms.current.detach() if micro.proximal is None else micro.proximal,
            behaviour=micro.behaviour,
            advantages=micro.advantages,
            entropy=terms.entropy,
            samples=micro.samples,
            lags=micro.lags,
            reference=terms.reference,
            kl=terms.kl,
        )


def _load(model: Path, config: TrainerConfig, device: Device) -> Any:
    """The frozen model in the configured precision."""
    kinds = {"float32": torch.float32, "bfloat16": torch.bfloat16}
    default = torch.bfloat16 if device == "cuda" else torch.float32
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    causal: Any = AutoModelForCausalLM.from_pretrained(
        str(model), dtype=kinds.get(config.dtype, default), local_files_only=True
    )
    for name in ("final_logit_softcapping", "logits_scaling", "logit_scale"):
        if getattr(causal.config, name, None) not in (None, 1, 1.0):
            raise ConfigError(f"{model}: models with {name} cannot be trained")
    return causal.to(device)
