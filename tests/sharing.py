"""How processes share the tests: by file, those that take long first.

Files that ask for the real engine stay together, so that one process starts one and the others
none: to start it takes a minute of a core. Small files come last and even out the end.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

_ENGINE = "files of the real engine"
_LONG = "pytest.mark.timeout("


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LongestFirst:
    return LongestFirst(config, log)


class LongestFirst(LoadFileScheduling):
    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        return _ENGINE if "sglang_url" in _text(self.config.rootpath / file) else file

    def _assign_work_unit(self, node: WorkerController) -> None:
        self.workqueue.move_to_end(max(self.workqueue, key=self._rank), last=False)
        super()._assign_work_unit(node)

    def _rank(self, scope: str) -> tuple[bool, bool, int]:
        asks_for_time = scope != _ENGINE and _LONG in _text(self.config.rootpath / scope)
        return scope == _ENGINE, asks_for_time, len(self.workqueue[scope])


@cache
def _text(file: Path) -> str:
    return file.read_text()
