"""Settings whose values stand in files: `NEXTSTATE_DATABASE__URL_FILE=/run/secrets/url`.

Any variable of a section may end in `_FILE`; the file's content, without white space at its ends,
is then the value. What container platforms mount as secrets never becomes part of an environment.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from gateway.errors import ConfigError

_ENDING = "_file"


def with_files(
    variables: Mapping[str, str | None], sections: Iterable[str]
) -> dict[str, str | None]:
    """The variables (names in lower case) with those that name files read.

    Raises ConfigError for a file that cannot be read, and where a value is given both ways.
    """
    read: dict[str, str | None] = {}
    starts = tuple(f"nextstate_{section}" for section in sections)
    for name, value in variables.items():
        if not (name.startswith(starts) and names_file(name)):
            if name in read:
                raise _twice(name)
            read[name] = value
            continue
        plain = name.removesuffix(_ENDING)
        if plain in read:
            raise _twice(plain)
        read[plain] = content(name.upper(), value or "")
    return read


def names_file(name: str) -> bool:
    """Whether a variable gives a file for a value; `LOG__FILE` is a setting of its own."""
    lower = name.lower()
    return lower.endswith(_ENDING) and not lower.endswith("_" + _ENDING)


def content(variable: str, path: str) -> str:
    """What a file holds that a variable names. Raises ConfigError."""
    try:
        found = Path(path).read_text().strip()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise ConfigError(f"{variable} names {path}, which cannot be read: {why}") from None
    if not found:
        raise ConfigError(f"{variable} names {path}, which is empty")
    return found


def _twice(name: str) -> ConfigError:
    upper = name.upper()
    return ConfigError(f"{upper} and {upper}_FILE are both set: keep one")
