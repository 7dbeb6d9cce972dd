"""Frozen records that the parts hand to each other, and the ids that name them.

Token ids are plain ints, log-probabilities natural logs of the distribution that was sampled
from, times seconds since the epoch (UTC) unless a name says `_ms`.
"""

from gateway.records.conversation import Conversation, Exchanged
from gateway.records.delay import delay
from gateway.records.generation import Chunk, Finish, FinishReason, Generation, Ranked
from gateway.records.ids import first_id, new_id
from gateway.records.judgement import JobState, JudgeJob, Judgement, Lesson, Teaching
from gateway.records.media import (
    DESCRIBED,
    Media,
    described,
    is_media,
    media_of,
    plain_parts,
    without_data,
)
from gateway.records.message import (
    INSTRUCTIONS,
    IS_ERROR,
    REMARK,
    Message,
    holds_reply,
    is_remark,
    plain_text,
)
from gateway.records.model_config import text_config
from gateway.records.placement import Candidate, Resolution, Trail
from gateway.records.policy import (
    PolicyKind,
    PolicyRef,
    PolicyState,
    Served,
    Standing,
    StepRecord,
    SwapRecord,
    Tally,
    VersionSpan,
)
from gateway.records.principal import Principal, Role
from gateway.records.reply import ORDER, Delta, Reply, Timings, ToolCall, Usage
from gateway.records.request import TurnKind, TurnRequest
from gateway.records.sample import SampleHead, SampleState, TrainingSample
from gateway.records.sampling import Sampling
from gateway.records.text import FILTERED, REFUSED, TextChunk, TextFinish, TextGeneration
from gateway.records.token_ids import first_outside, holds, packed_ids
from gateway.records.turn import (
    SAME_TOOLS,
    FeedbackRecord,
    NextState,
    SessionRecord,
    TurnRecord,
    Verdict,
)

__all__ = [
    "DESCRIBED",
    "FILTERED",
    "INSTRUCTIONS",
    "IS_ERROR",
    "ORDER",
    "REFUSED",
    "REMARK",
    "SAME_TOOLS",
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
    "Lesson",
    "Media",
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
    "Served",
    "SessionRecord",
    "Standing",
    "StepRecord",
    "SwapRecord",
    "Tally",
    "Teaching",
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
    "delay",
    "described",
    "first_id",
    "first_outside",
    "holds",
    "holds_reply",
    "is_media",
    "is_remark",
    "media_of",
    "new_id",
    "packed_ids",
    "plain_parts",
    "plain_text",
    "text_config",
    "without_data",
]
