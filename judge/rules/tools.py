"""What tools gave back: errors count against the call, success alone proves nothing.

Tools speak in many shapes: exit codes, tracebacks, HTTP statuses, JSON with an error in it,
time-outs. Text that a tool merely read (a log, a page, a source file) may contain any of these
words, so free text counts only at the start or the end of a result, and an exit code of 0 or a
JSON success overrules it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from judge.rules.base import Rule
from judge.rules.builds import failure_in
from judge.verdicts import TEXT_LIMIT, Evidence, Finding, ToolResult, edges

JSON_LIMIT = 256 * 1024

_EXIT = re.compile(
    r"^\W{0,3}(?:the )?(?:(?:process|command|script|shell|program|task)\b.{0,60}? )?"
    r"(?:exit[ _-]?(?:code|status|value)|return[ _-]?(?:code|value)|exited with(?: code| status)?|"
    r"(?:exited|terminated|finished|completed|failed) with (?:non-?zero )?(?:exit )?"
    r"(?:code|status))\s*(?:of |is |was )?[:=]?\s*(-?\d{1,10})\b",
    re.IGNORECASE,
)
_RETURN_TAG = re.compile(r"<(?:returncode|exit_?code|exit_?status)>\s*(-?\d+)\s*<", re.IGNORECASE)
_TRACEBACK = re.compile(
    r"(?:^|\n)\s*(?:Traceback \(most recent call last\):"
    r"|Exception in thread \"|panic: |thread '[^']*'(?: \(\d+\))? panicked at |Unhandled "
    r"(?:exception|rejection)|Uncaught \w*(?:Error|Exception)\b|goroutine \d+ \[running\]:"
    r"|Segmentation fault\b|Fatal error: )"
)
_LAST_ERROR = re.compile(r"^[\w.]*(?:Error|Exception|Exit|Interrupt|Timeout|Fault)\b[:\s(]?")
_FIRST_WORDS = re.compile(
    r"^\W{0,4}(?:"
    r"(?:<tool_use_error>|<error\b)"
    r"|(?:fatal|unexpected|internal|runtime|tool|execution|server|system|api|validation|"
    r"syntax|permission|network|connection|unknown)? ?error\b\s*(?:\(|:|\[|-|executing|calling|"
    r"running|while|occurred|invoking|in tool|\d)"
    r"|[\w.]*[a-z](?:Error|Exception)\b\s*[:(]"
    r"|(?:fatal|exception|failure|panic)\s*:"
    r"|(?:unknown|no such|invalid|unrecognized|missing) (?:tool|function|argument|parameter)"
    r"|(?:tool|function) (?:'[^']*'|\"[^\"]*\"|`[^`]*`|\w+ )?\s*(?:was |is )?"
    r"(?:not found|does not exist|failed|unavailable)"
    r"|(?:tool|function) call .{0,80}(?:could not be|was not) executed"
    r"|(?:request|command|operation|call|tool|execution|connection|query) "
    r"(?:has )?(?:failed|timed out|was aborted|refused|denied)"
    r"|access (?:is )?denied\b|permission denied\b|connection (?:refused|reset|error)"
    r"|timed out\b|time-?out\b"
    r")",
    re.IGNORECASE,
)
#: Openings that a page or a file may have as well; they count in a short result only.
_WEAK_WORDS = re.compile(
    r"^\W{0,4}(?:sorry, )?(?:failed to |could ?n[o']t |cannot |can't |unable to |invalid )",
    re.IGNORECASE,
)
_SHORT = 400
_SHELL = re.compile(
    r"^(?:(?:/\S+/)?(?:ba|z|da|fi|k)?sh|\w[\w.+-]{0,30}): .{0,200}?(?:command not found|"
    r"no such file or directory|permission denied|not a directory|is a directory|"
    r"cannot access|syntax error|invalid option|unrecognized option)",
    re.IGNORECASE,
)
_HTTP = re.compile(
    r"^\W{0,3}(?:HTTP(?:/\d(?:\.\d)?)?(?: error| status(?: code)?| request failed.{0,40}?)?|"
    r"status(?:[ _]code)?|(?:request )?failed with status(?: code)?|response status|"
    r"(?:\w+ )?server (?:returned|responded with)(?: status)?|error code)"
    r"\s*[:=]?\s*(\d{3})\b",
    re.IGNORECASE,
)
_STATUS_LINE = re.compile(
    r"^\W{0,3}([45]\d\d)[ :-]+(?:bad request|unauthori[sz]ed|payment required|forbidden|not found|"
    r"method not allowed|not acceptable|request time-?out|conflict|gone|payload too large|"
    r"unprocessable|too many requests|internal server error|not implemented|bad gateway|"
    r"service unavailable|gateway time-?out|client error|server error)",
    re.IGNORECASE,
)
_TIMEOUT = re.compile(
    r"\b(?:timed out (?:after|waiting)\b|(?:deadline|time limit|timeout) (?:was )?exceeded\b|"
    r"(?:command|process|request|operation|execution|script|tool call) timed out\b|timeouterror\b|"
    r"killed after \d+ ?(?:s|ms|seconds)\b)",
    re.IGNORECASE,
)
_DECLINED = re.compile(
    r"(?:the )?user (?:doesn't want to (?:proceed|take)|does not want to (?:proceed|take)|"
    r"(?:has )?(?:rejected|declined|denied|refused|cancell?ed|chose not to (?:run|allow)))\b",
    re.IGNORECASE,
)

_EXIT_KEYS = ("exit_code", "exitCode", "exitcode", "returncode", "return_code", "exit_status")
_STATUS_KEYS = ("status", "status_code", "statusCode", "http_status", "code")
_BAD_WORDS = {"error", "failed", "failure", "fail", "timeout", "timed_out", "fatal", "exception"}


def _error(evidence: Evidence) -> Finding | None:
    """The first error among all results; one is enough."""
    results = evidence.tool_results
    for index, result in enumerate(results):
        if reason := error_in(result):
            place = f" (result {index + 1} of {len(results)})" if len(results) > 1 else ""
            return Finding(score=-1.0, reason=reason + place)
    return None


def _declined(evidence: Evidence) -> Finding | None:
    if any(_DECLINED.match(result.text.strip()) for result in evidence.tool_results):
        return Finding(score=-1.0, reason="the user declined the tool call")
    return None


def _success(evidence: Evidence) -> Finding | None:
    if not evidence.tool_results or evidence.answers:
        return None
    return Finding(score=0.0, reason="the tools ran; nothing says whether that helped")


def error_in(result: ToolResult) -> str | None:
    """Why this tool result is a failure, or None."""
    if result.flagged:
        return "the tool result is marked as an error"
    text = result.text.strip()
    if text[:1] in "{[" and len(text) <= JSON_LIMIT:
        try:
            data = json.loads(text)
        except (ValueError, RecursionError):
            pass  # It only looked like JSON.
        else:
            return _json_error(data)
    code = _exit_code(text)
    if code is not None:
        return f"exit code {code}" if code else None
    return _text_error(edges(text))


def _exit_code(text: str) -> int | None:
    """The code in the report about a command, which stands before or after its output.

    Codes further inside are part of the output and may be another command's.
    """
    if tag := _RETURN_TAG.search(text[:TEXT_LIMIT]) or _RETURN_TAG.search(text[-TEXT_LIMIT:]):
        return int(tag[1])
    lines = [line.strip()[:200] for line in edges(text).splitlines() if line.strip()]
    for line in [*lines[:3], *reversed(lines[-3:])]:
        if match := _EXIT.match(line):
            return int(match[1])
    return None


def _text_error(text: str) -> str | None:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return None
    first, last = lines[0][:400], lines[-1][:400]
    for pattern in (_HTTP, _STATUS_LINE):
        if (match := pattern.match(first)) and 400 <= int(match[1]) < 600:
            return f"HTTP status {match[1]}"
    if _TIMEOUT.search(first) or (len(lines) > 1 and _TIMEOUT.search(last)):
        return "time-out"
    if _TRACEBACK.match(text) or (_TRACEBACK.search(text) and _LAST_ERROR.match(last)):
        return "traceback"
    if _FIRST_WORDS.match(first) or (len(text) <= _SHORT and _WEAK_WORDS.match(first)):
        return "error message"
    if len(lines) <= 3 and any(_SHELL.match(line) for line in lines):
        return "error message"
    return failure_in(lines)


def _json_error(data: Any, depth: int = 0) -> str | None:
    if isinstance(data, list):
        # A list of content blocks; a list of records is data.
        blocks = [item for item in data if isinstance(item, Mapping) and "type" in item]
        texts = [item["text"] for item in blocks if isinstance(item.get("text"), str)]
        return next(filter(None, (error_in(ToolResult(text=t)) for t in texts[:64])), None)
    if not isinstance(data, Mapping):
        return None
    for key in _EXIT_KEYS:
        code = data.get(key)
        if isinstance(code, int) and not isinstance(code, bool):
            return f"exit code {code}" if code else None
    if any(data.get(key) is True for key in ("is_error", "isError", "timed_out", "timedOut")):
        return "the tool result is marked as an error"
    if any(data.get(key) is False for key in ("success", "ok", "succeeded")):
        return "the tool says that it did not succeed"
    if data.get("error") or data.get("errors") or data.get("type") == "error":
        return "the tool result carries an error"
    for key in _STATUS_KEYS:
        if reason := _bad_status(data.get(key)):
            return reason
    inner = (data.get(key) for key in ("metadata", "result", "response")) if depth < 2 else ()
    return next(filter(None, (_json_error(value, depth + 1) for value in inner)), None)


def _bad_status(status: object) -> str | None:
    """A status word or number that means failure, for instance 404, "503" or "failed"."""
    if isinstance(status, str) and status.casefold() in _BAD_WORDS:
        return f"status {status.casefold()}"
    number = int(status) if isinstance(status, str) and re.fullmatch(r"\d{3}", status) else status
    if isinstance(number, int) and not isinstance(number, bool) and 400 <= number < 600:
        return f"HTTP status {number}"
    return None


TOOL_ERROR = Rule("tool_error", 0.9, _error)
TOOL_DECLINED = Rule("tool_declined", 0.85, _declined)
TOOL_SUCCESS = Rule("tool_success", 0.6, _success)
