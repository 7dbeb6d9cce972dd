"""How Megatron shares a model out: bounds, and nothing heavy loaded."""

import subprocess
import sys

import pytest
from pydantic import ValidationError

from trainer.config import TrainerConfig
from trainer.megatron_settings import MegatronSettings


def test_reading_settings_loads_no_megatron() -> None:
    code = (
        "import sys, trainer.config, trainer.megatron_settings;"
        "sys.exit(bool({'torch', 'megatron'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_one_process_and_torch_unless_asked_otherwise() -> None:
    config = TrainerConfig()
    assert config.backend == "torch"
    sizes = config.megatron.tensor_parallel, config.megatron.pipeline_parallel
    assert sizes == (1, 1)


@pytest.mark.parametrize(
    "values", [{"tensor_parallel": 0}, {"sequence_parallel": True}, {"layers": "apex"}]
)
def test_what_makes_no_sense_is_refused(values: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        MegatronSettings.model_validate(values)


def test_sequences_are_shared_out_where_matrices_are() -> None:
    settings = MegatronSettings(sequence_parallel=True, tensor_parallel=2)
    assert settings.sequence_parallel


@pytest.mark.parametrize(
    "values",
    [
        {"backend": "megatron", "recompute": "layers"},
        {"backend": "megatron", "distributed": {"shard": 8}},
        {"megatron": {"tensor_parallel": 2}},
        {"distributed": {"timeout_s": 10, "beat_s": 10}},
    ],
)
def test_what_nobody_would_read_is_refused(values: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        TrainerConfig.model_validate(values)


def test_each_back_end_has_its_own_word_for_recomputed_layers() -> None:
    config = TrainerConfig.model_validate(
        {"backend": "megatron", "megatron": {"recompute": True}, "distributed": {"beat_s": 1}}
    )
    assert config.megatron.recompute
    assert TrainerConfig(recompute="layers").backend == "torch"
