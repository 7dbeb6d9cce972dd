"""JSON bodies decoded into a record, and complaints about them in the words of the OpenAI API."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from gateway.errors import InvalidRequest

T = TypeVar("T")

_AT = re.compile(r" - at `\$\.?(?P<path>.*)`$")
_MISSING = re.compile(r"missing required field `(?P<name>[^`]+)`")
_DEPTH = 100
_HOLDERS = (dict, list)


class JsonBody:
    """Decodes bodies into `kind`, a msgspec Struct; fields that it does not have are ignored."""

    def __init__(self, kind: type[T]) -> None:
        self._decoder = msgspec.json.Decoder(kind)

    def decode(self, body: bytes) -> Any:  # the Struct given above
        """Raises InvalidRequest: no JSON, a wrong type, nested too deeply."""
        try:
            return self._decoder.decode(body)
        except msgspec.ValidationError as error:
            raise _complaint(str(error)) from None
        except msgspec.DecodeError:
            raise InvalidRequest(
                "We could not parse the JSON body of your request.", code="invalid_json"
            ) from None
        except RecursionError:
            raise _too_deep() from None


def check_depth(value: object, param: str) -> None:
    """Refuse JSON nested so deeply that later readers of it could run out of stack."""
    level: list[Any] = [value] if isinstance(value, _HOLDERS) else []
    for _ in range(_DEPTH):
        # The tools of an agent come with every request: one loop, without a call for each of them.
        below: list[Any] = []
        for holder in level:
            for item in holder.values() if type(holder) is dict else holder:
                if type(item) is dict or type(item) is list:
                    below.append(item)  # noqa: PERF401 - what is said above
        if not below:
            return
        level = below
    raise _too_deep(param)


def invalid(param: str, message: str, code: str = "invalid_value") -> InvalidRequest:
    """A complaint about one field."""
    return InvalidRequest(f"Invalid value for '{param}': {message}.", param=param, code=code)


def missing(param: str) -> InvalidRequest:
    """A complaint about a field that has to be there."""
    return InvalidRequest(
        f"Missing required parameter: '{param}'.", param=param, code="missing_required_parameter"
    )


def text_in(holder: Mapping[str, Any], key: str, at: str) -> str:
    """The string under a key. Raises InvalidRequest where there is none, or something else."""
    value = holder.get(key)
    if value is None:
        raise missing(f"{at}.{key}")
    return optional_text_in(holder, key, at)


def optional_text_in(holder: Mapping[str, Any], key: str, at: str) -> str:
    """The same, or nothing where there is none."""
    value = holder.get(key)
    if value is not None and not isinstance(value, str):
        raise invalid(f"{at}.{key}", "expected a string", "invalid_type")
    return value or ""


def unsupported(param: str, message: str) -> InvalidRequest:
    """A complaint about a field that is right but cannot be served here."""
    return InvalidRequest(message, param=param, code="unsupported_parameter")


def _complaint(text: str) -> InvalidRequest:
    at = _AT.search(text)
    path = at["path"] if at else ""
    if lacking := _MISSING.search(text):
        return missing(f"{path}.{lacking['name']}".lstrip("."))
    words = (text[: at.start()] if at else text).replace("`", "")
    if not path:
        return InvalidRequest(f"Invalid request body: {words}.", code="invalid_type")
    return InvalidRequest(
        f"Invalid type for '{path}': {words[0].lower() + words[1:]}.",
        param=path,
        code="invalid_type",
    )


def _too_deep(param: str | None = None) -> InvalidRequest:
    return InvalidRequest("The request is nested too deeply.", param=param, code="invalid_value")
