"""`python -m trainer`: the same as `nextstate train`."""

from __future__ import annotations

import sys

from gateway.config import load
from gateway.errors import NextstateError
from trainer.config import TrainerSettings
from trainer.service import main

try:
    main(load(TrainerSettings))
except NextstateError as error:
    sys.stderr.write(f"{error.message}\n")
    sys.exit(1)
