"""Frozen records that the parts hand to each other, and the ids that name them.

Token ids are plain ints, log-probabilities natural logs of the distribution that was sampled
from, times seconds since the epoch (UTC) unless a name says `_ms`.
"""

from gateway.records.conversation import Conversation, Exchanged
from gateway.records.generation import Chunk, Finish, FinishReason, Generation, Ranked
from gateway.records.ids import new_id
from gateway.records.judgement import JobState, JudgeJob, Judgement
from gateway.records.message import Message, is_remark, plain_text
from gateway.records.placement import Candidate, Resolution, Trail
from gateway.records.policy import (
    PolicyKind,
    PolicyRef,
    PolicyState,
    StepRecord,
    SwapRecord,
    VersionSpan,
)
from gateway.records.principal import Principal, Role
from gateway.records.reply import Delta, Reply, Timings, ToolCall, Usage
from gateway.records.request import TurnKind, TurnRequest
from gateway.records.sample import SampleHead, SampleState, TrainingSample
from gateway.records.sampling import Sampling
from gateway.records.text import TextChunk, TextFinish, TextGeneration
from gateway.records.turn import FeedbackRecord, NextState, SessionRecord, TurnRecord, Verdict

__all__ = [
    "Candidate",
    "Chunk",
    "Conversation",
    "Delta",
    "Exchanged",
    "FeedbackRecord",
    "Finish",
    "FinishReason",
    "Generation",
    "JobState",
    "JudgeJob",
    "Judgement",
    "Message",
    "NextState",
    "PolicyKind",
    "PolicyRef",
    "PolicyState",
    "Principal",
    "Ranked",
    "Reply",
    "Resolution",
    "Role",
    "SampleHead",
    "SampleState",
    "Sampling",
    "SessionRecord",
    "StepRecord",
    "SwapRecord",
    "TextChunk",
    "TextFinish",
    "TextGeneration",
    "Timings",
    "ToolCall",
    "Trail",
    "TrainingSample",
    "TurnKind",
    "TurnRecord",
    "TurnRequest",
    "Usage",
    "Verdict",
    "VersionSpan",
    "is_remark",
    "new_id",
    "plain_text",
]
