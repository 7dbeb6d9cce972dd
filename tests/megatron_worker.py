"""One process of Megatron on the CPU, named as torchrun names it: `... megatron_worker DIRECTORY`.

Writers of checkpoints import this file again, so it holds nothing else.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    from tests.megatron_report import main

    main(Path(sys.argv[1]))
