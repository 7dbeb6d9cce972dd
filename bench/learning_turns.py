"""One round of conversations with a version: sampled, scored by what users want, and taught."""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass
from typing import Any
from uuid import UUID, uuid5

from bench.learning_model import Policy, Reply
from bench.learning_users import Person, asked
from gateway.records import FinishReason, Message, Teaching, TrainingSample, VersionSpan
from judge.hinted import hinted

TEMPERATURE, LIMIT = 0.8, 64
#: How many of those who complain wait for another answer.
PERSISTENCE = 0.2
_SPACE = UUID(int=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """`depth` 0 opened the conversation `session`; `taught` [R] is what the hinted base says."""

    session: str
    depth: int
    version: int
    person: str
    question: str
    reply: str
    score: float
    finished: bool
    prompt_ids: tuple[int, ...]
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    taught: tuple[float, ...] | None
    hint: str

    def dump(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def read(cls, found: dict[str, Any]) -> Turn:
        for name in ("prompt_ids", "ids", "logprobs", "taught"):
            found[name] = None if found[name] is None else tuple(found[name])
        return cls(**found)

    def sample(self) -> TrainingSample:
        turn = uuid5(_SPACE, f"{self.session}/{self.depth}")
        teaching = None
        if self.taught is not None:
            teaching = Teaching(
                teacher="base", lineage_id=None, version=0, model="base", hint=self.hint,
                prompt_len=len(self.prompt_ids), logprobs=self.taught,
            )  # fmt: skip
        return TrainingSample(
            id=turn,
            turn_id=turn,
            session_id=uuid5(_SPACE, self.session),
            user=self.person,
            score=self.score,
            weight=1.0,
            prompt_ids=self.prompt_ids,
            sampled_ids=self.ids,
            logprobs=self.logprobs,
            spans=(VersionSpan(self.version, 0, len(self.ids)),),
            temperature=TEMPERATURE,
            finish_reason=FinishReason.STOP if self.finished else FinishReason.LENGTH,
            arrived_at=0.0,
            depth=self.depth,
            teaching=teaching,
        )


@dataclass(frozen=True, slots=True)
class _Talk:
    person: Person
    question: str
    messages: tuple[Message, ...]
    prompt: tuple[int, ...]


def converse(
    policy: Policy,
    teacher: Policy | None,
    version: int,
    count: int,
    name: str,
    *,
    follow: bool = True,
) -> list[Turn]:
    """`count` conversations; the same people, questions and noise for the same `name`.

    Without `follow` nobody waits for another answer, without a teacher nobody is taught.
    """
    rng = random.Random(name)
    talks = []
    for person, question in asked(count, rng):
        messages = (
            {"role": "system", "content": person.system},
            {"role": "user", "content": question},
        )
        talks.append(_Talk(person, question, messages, policy.prompt(messages)))
    stays = [rng.random() < PERSISTENCE for _ in talks]
    complaints = [rng.choice(talk.person.complaints) for talk in talks]
    seeds = rng.getrandbits(32), rng.getrandbits(32)

    def ask(rows: dict[int, _Talk], depth: int) -> dict[int, Turn]:
        replies = policy.generate(
            [talk.prompt for talk in rows.values()], LIMIT, TEMPERATURE, seeds[depth]
        )
        return {
            row: _turn(
                policy,
                teacher,
                talk,
                reply,
                session=f"{name}/{row}",
                depth=depth,
                version=version,
            )
            for (row, talk), reply in zip(rows.items(), replies, strict=True)
        }

    first = ask(dict(enumerate(talks)), 0)
    again = {
        row: _complained(policy, talks[row], turn, complaints[row])
        for row, turn in first.items()
        if follow and turn.score < 0 and stays[row]
    }
    second = ask(again, 1) if again else {}
    return [*first.values(), *second.values()]


def _complained(policy: Policy, talk: _Talk, turn: Turn, complaint: str) -> _Talk:
    """The same conversation after a complaint: the ids so far, and only what is new."""
    closing = "" if turn.finished else "<|im_end|>"
    new = f"{closing}\n<|im_start|>user\n{complaint}<|im_end|>\n<|im_start|>assistant\n"
    messages: tuple[Message, ...] = (
        *talk.messages,
        {"role": "assistant", "content": turn.reply},
        {"role": "user", "content": complaint},
    )
    ids = (*turn.prompt_ids, *turn.ids, *policy.ids(new))
    return _Talk(talk.person, talk.question, messages, ids)


def _turn(
    policy: Policy,
    teacher: Policy | None,
    talk: _Talk,
    reply: Reply,
    *,
    session: str,
    depth: int,
    version: int,
) -> Turn:
    text = policy.text(reply.ids)
    score = talk.person.score(text, reply.finished)
    taught = None
    if score < 0 and teacher is not None:
        # Only who is not content says what they meant.
        told = teacher.prompt(hinted(talk.messages, talk.person.hint))
        taught = teacher.score(told, reply.ids)
    return Turn(
        session=session,
        depth=depth,
        version=version,
        person=talk.person.name,
        question=talk.question,
        reply=text,
        score=score,
        finished=reply.finished,
        prompt_ids=talk.prompt,
        ids=reply.ids,
        logprobs=reply.logprobs,
        taught=taught,
        hint=talk.person.hint,
    )
