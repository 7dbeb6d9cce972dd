"""`python -m judge`: a judge with the settings in force."""

from __future__ import annotations

import sys

from gateway.config import load
from gateway.errors import NextstateError
from judge.config import JudgeSettings
from judge.worker import main

if __name__ == "__main__":
    try:
        main(load(JudgeSettings))
    except NextstateError as error:
        sys.exit(f"judge: {error.message}")
