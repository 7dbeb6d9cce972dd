"""Which judges stand in line: the rules, the LLM where one is configured, and plug-ins.

A plug-in is a callable under the entry point group `nextstate.judges`. It is given its own
settings (`judge.plugins.NAME`) and returns a `Judge`. It is loaded only where `judge.line` names
it. Explicit feedback comes first in every line: nobody overrules somebody's own word.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from gateway.errors import ConfigError
from judge.budget import Budget
from judge.config import JudgeConfig
from judge.evaluate import RuleJudge
from judge.places import Places
from judge.rules.feedback import FEEDBACK
from judge.verdicts import Judge

if TYPE_CHECKING:
    from judge.hints import Hinter

GROUP = "nextstate.judges"
RULES, LLM = "rules", "llm"

Factory = Callable[[Mapping[str, Any]], Judge]


@dataclass(frozen=True, slots=True)
class Lineup:
    """The judges in order, who asks for hints, and the endpoint's budget and places."""

    judges: tuple[Judge, ...]
    hinter: Hinter | None = None
    budget: Budget | None = None
    places: Places | None = None


@asynccontextmanager
async def lined_up(config: JudgeConfig) -> AsyncIterator[Lineup]:
    """The configured judges; endpoints are closed on the way out.

    Raises ConfigError for a judge or rule that does not exist, or a plug-in that does not load.
    """
    line = config.line or (RULES, *([LLM] if config.llm else []))
    if unused := sorted(set(config.plugins) - set(line)):
        raise ConfigError(f"judge.plugins names {', '.join(unused)}, which judge.line does not")
    judges: list[Judge] = []
    budget: Budget | None = None
    places: Places | None = None
    async with AsyncExitStack() as stack:
        endpoint = None
        if config.llm is not None:
            # The client's library is loaded only where it is used.
            from judge.endpoint import Endpoint

            endpoint = Endpoint(config.llm)
            stack.push_async_callback(endpoint.close)
            budget, places = endpoint.budget, endpoint.places
        for name in line:
            if name == RULES:
                judges.append(RuleJudge.configured(config))
            elif name == LLM:
                if endpoint is None or config.llm is None:
                    raise ConfigError("judge.line names llm, and there is no section judge.llm")
                from judge.llm import LlmJudge

                judges.append(LlmJudge(endpoint, config.llm))
            else:
                judges.append(plugged_in(name, config.plugins.get(name, {})))
        if line[:1] != (RULES,) and (heard := RuleJudge.configured(config).only(FEEDBACK.name)):
            judges.insert(0, heard)
        hinter = None
        if endpoint is not None and config.llm is not None and config.llm.hints != "off":
            from judge.hints import Hinter

            hinter = Hinter(endpoint=endpoint, config=config.llm, agreement=config.llm.hints)
        yield Lineup(tuple(judges), hinter, budget, places)


def plugged_in(name: str, settings: Mapping[str, Any]) -> Judge:
    """The judge of an entry point. Raises ConfigError where it is not there or does not load."""
    found = entry_points(group=GROUP, name=name)
    if not found:
        known = sorted({RULES, LLM, *entry_points(group=GROUP).names})
        raise ConfigError(f"judge: no judge named {name}; there are {', '.join(known)}")
    try:
        make: Factory = next(iter(found)).load()
        judge = make(settings)
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"judge {name}: {type(error).__name__}: {error}") from error
    if not isinstance(getattr(judge, "name", None), str) or not callable(
        getattr(judge, "judge", None)
    ):
        raise ConfigError(f"judge {name} is not a judge: it needs a name and judge(evidence)")
    return judge
