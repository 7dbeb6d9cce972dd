"""The one exception tree.

NextstateError
├── ConfigError                 the operator's settings are wrong
├── RequestError                the client's request cannot be served as sent
│   ├── InvalidRequest          400
│   │   └── ContextTooLong      400, with both numbers
│   ├── AuthenticationError     401
│   ├── PermissionDenied        403
│   ├── NotFound                404
│   │   └── ModelNotFound       404
│   ├── MethodNotAllowed        405
│   ├── RequestTimeout          408
│   ├── Conflict                409
│   ├── PreconditionFailed      412
│   ├── BodyTooLarge            413
│   ├── UnsupportedEncoding     415
│   └── TooManyRequests         429, with seconds to wait
├── EngineError                 an inference engine did not do what it was asked
│   ├── EngineUnavailable       no answer: down, starting, or fenced off
│   ├── EngineTimeout           no answer in time
│   ├── EngineOverloaded        its queue is full
│   └── EngineRejected          it refused the request and said why
├── StoreError                  Postgres
│   ├── StoreUnavailable        cannot be reached
│   └── RevisionMismatch        the schema is not one this build can run on
├── StackError                  the one-machine stack cannot start or stop
├── JudgeError                  a judge could not reach a verdict
│   └── JudgeUnavailable        what it asks is away: the job waits
└── TrainerError
    ├── NotLeader               another trainer took over; nothing may be written
    ├── NonFinite               loss or gradient is not a number
    ├── RankLost                a process that trains along died or does not answer
    └── CheckpointCorrupt       files are not those that were written

Errors travel up untouched and are turned into a reply, an exit code or a row once, at the
boundary: `gateway.api.errors` for HTTP, `gateway.cli` for the terminal, the worker loops for jobs.
"""

from __future__ import annotations


class NextstateError(Exception):
    """Base of everything this project raises on purpose."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class ConfigError(NextstateError):
    """A setting is missing, malformed or contradicts another."""


class RequestError(NextstateError):
    """The client's request cannot be served. `status` is the HTTP status of the answer.

    `param` names the offending field, `code` is a stable machine-readable word, both in the
    vocabulary of the OpenAI API; dialects translate them.
    """

    status = 400
    kind = "invalid_request_error"
    default_code: str | None = None

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code if code is not None else self.default_code


class InvalidRequest(RequestError):
    """Malformed JSON, a wrong type, a value out of range."""


class ContextTooLong(InvalidRequest):
    """Prompt and reply together exceed the model's context."""

    default_code = "context_length_exceeded"

    def __init__(self, *, limit: int, prompt_tokens: int, reply_tokens: int) -> None:
        super().__init__(
            f"This model's maximum context length is {limit} tokens. However, you requested "
            f"{prompt_tokens + reply_tokens} tokens ({prompt_tokens} in the messages, "
            f"{reply_tokens} in the completion).",
            param="messages",
        )
        self.limit = limit
        self.prompt_tokens = prompt_tokens
        self.reply_tokens = reply_tokens


class AuthenticationError(RequestError):
    status = 401
    kind = "authentication_error"
    default_code = "invalid_api_key"


class PermissionDenied(RequestError):
    status = 403
    kind = "permission_error"
    default_code = "permission_denied"


class NotFound(RequestError):
    status = 404
    kind = "not_found_error"
    default_code = "not_found"


class ModelNotFound(NotFound):
    kind = "invalid_request_error"
    default_code = "model_not_found"

    def __init__(self, model: str) -> None:
        super().__init__(
            f"The model `{model}` does not exist or you do not have access to it.", param="model"
        )


class MethodNotAllowed(RequestError):
    status = 405
    default_code = "method_not_supported"


class RequestTimeout(RequestError):
    """The request did not arrive in time."""

    status = 408
    default_code = "request_timeout"


class Conflict(RequestError):
    """The request contradicts one that was served before."""

    status = 409
    default_code = "conflict"


class PreconditionFailed(RequestError):
    """What is to be changed is not as the client saw it."""

    status = 412
    default_code = "precondition_failed"


class BodyTooLarge(RequestError):
    status = 413
    default_code = "request_too_large"


class UnsupportedEncoding(RequestError):
    """The body is compressed in a way that is not known here."""

    status = 415
    default_code = "unsupported_content_encoding"


class TooManyRequests(RequestError):
    status = 429
    kind = "rate_limit_error"
    default_code = "rate_limit_exceeded"

    def __init__(self, message: str, *, retry_after_s: float, code: str | None = None) -> None:
        super().__init__(message, code=code)
        self.retry_after_s = retry_after_s


class EngineError(NextstateError):
    """An engine failed. `engine` is its configured name."""

    def __init__(self, message: str, *, engine: str) -> None:
        super().__init__(message)
        self.engine = engine


class EngineUnavailable(EngineError):
    """The engine cannot be reached, is still starting, or is fenced off."""


class EngineTimeout(EngineError):
    """The engine did not answer within the configured bound."""


class EngineOverloaded(EngineError):
    """The engine's own queue is full; another engine may take the request."""


class EngineRejected(EngineError):
    """The engine refused the request; its words are in the message."""


class StoreError(NextstateError):
    """Postgres did not do what it was asked."""


class StoreUnavailable(StoreError):
    """Postgres cannot be reached or does not answer in time."""


class RevisionMismatch(StoreError):
    """The database schema is at a revision that this build cannot run on."""


class StackError(NextstateError):
    """The one-machine stack cannot be started, found or stopped."""


class JudgeError(NextstateError):
    """A judge failed; the job is retried within its bounds and then set aside."""


class JudgeUnavailable(JudgeError):
    """What a judge depends on is away for now: the job waits for it, however long it takes.

    `retry_after_s` is how long there is no use in asking again.
    """

    def __init__(self, message: str, *, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class TrainerError(NextstateError):
    """A training step cannot go on."""


class NotLeader(TrainerError):
    """Another trainer holds the lineage's epoch: nothing may be written."""


class NonFinite(TrainerError):
    """A loss, gradient or weight is not finite; the step is thrown away."""


class RankLost(TrainerError):
    """The ranks of a job are no longer in step: the job ends, and begins anew from Postgres."""


class CheckpointCorrupt(TrainerError):
    """A version's files are missing or not those that were written."""
