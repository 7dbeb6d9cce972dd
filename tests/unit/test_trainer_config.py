"""Settings of the trainer: bounds, defaults, and no torch."""

import subprocess
import sys
from pathlib import Path

import pytest

from gateway.config import load
from gateway.errors import ConfigError
from trainer.config import TrainerSettings


def test_reading_settings_loads_no_torch() -> None:
    code = (
        "import sys, trainer.config, trainer.schedule, trainer.credit;"
        "sys.exit(bool({'torch', 'transformers', 'peft'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_window_is_a_quarter_more_than_the_batch_where_eta_allows_it() -> None:
    def window(batch: int, max_lag: int) -> int:
        return TrainerSettings(freshness={"batch": batch, "max_lag": max_lag}).window

    assert window(16, 4) == 20
    assert window(16, 0) == 16
    assert window(1, 1) == 1
    assert TrainerSettings(freshness={"batch": 2}).min_batch == 2


@pytest.mark.parametrize(
    "values",
    [
        {"trainer": {"window": 8}},
        {"trainer": {"window": 80}},
        {"trainer": {"learning_rate": 1}},
        {"trainer": {"lora": {"rank": 0}}},
        {"freshness": {"max_lag": 0, "batch": 16}, "trainer": {"window": 17}},
    ],
)
def test_what_cannot_work_is_refused(values: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        load(TrainerSettings, **values)


def test_strictly_on_policy_is_possible() -> None:
    settings = load(TrainerSettings, freshness={"max_lag": 0, "batch": 16})
    assert (settings.batch, settings.window) == (16, 16)


def test_the_model_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"model\.path"):
        _ = TrainerSettings().model_directory
    with pytest.raises(ConfigError, match=r"config\.json"):
        _ = TrainerSettings(model={"path": tmp_path}).model_directory
    (tmp_path / "config.json").write_text("{}")
    assert TrainerSettings(model={"path": tmp_path}).model_directory == tmp_path
