"""What is looked for by form: addresses, numbers with a check digit, keys.

Every expression runs in time linear in the text: repetitions are bounded, and a match begins only
where a word does. Numbers count only where their own check says that they are one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

#: Digits of a phone number (E.164 allows 15).
_PHONE_DIGITS = range(8, 16)
_CARD_DIGITS = range(13, 20)


@dataclass(frozen=True, slots=True)
class Pattern:
    """A named expression. Without its `mark`, if any, a text has no match; `check` confirms one."""

    label: str
    expression: re.Pattern[str]
    mark: str = ""
    check: Callable[[str], bool] | None = None

    def find(self, text: str) -> Iterator[tuple[int, int]]:
        """[start, end) of each match."""
        if self.mark and self.mark not in text:
            return
        for match in self.expression.finditer(text):
            if match.end() > match.start() and (self.check is None or self.check(match.group())):
                yield match.span()


def luhn(text: str) -> bool:
    """Whether the digits of a text end in their check digit (ISO/IEC 7812-1), as cards' do."""
    digits = [int(sign) for sign in text if sign.isdigit()]
    doubled = [sum(divmod(2 * digit, 10)) for digit in digits[-2::-2]]
    return len(digits) in _CARD_DIGITS and (sum(digits[::-2]) + sum(doubled)) % 10 == 0


def mod_97(text: str) -> bool:
    """Whether an account number has its two check digits (ISO 13616)."""
    signs = "".join(text.split()).upper()
    return int("".join(str(int(sign, 36)) for sign in signs[4:] + signs[:4])) % 97 == 1


def _is_phone(text: str) -> bool:
    return sum(sign.isdigit() for sign in text) in _PHONE_DIGITS


_EMAIL = r"(?<![\w.+-])[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,8}"
_PHONE = (
    r"(?<![\w+.])(?<!\d[ -])(?:\+|00)\d{1,3}(?:[ ./-]?\(?\d{1,4}\)?){2,6}(?!\w)"
    r"|(?<![\w+.])(?:\(\d{3}\) ?|\d{3}[ .-])\d{3}[ .-]\d{4}(?!\w)"
)
_CARD = r"(?<![\w.-])[0-9](?:[ -]?[0-9]){12,18}(?![\w-])"
_IBAN = r"(?<!\w)[A-Z]{2}[0-9]{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,3})?(?!\w)"
_KEY = (
    r"(?<![\w-])(?:"
    r"(?:sk|pk|rk)[-_][\w-]{16,256}|gh[opsru]_\w{30,256}|github_pat_\w{30,256}|glpat-[\w-]{16,64}"
    r"|(?:AKIA|ASIA)[0-9A-Z]{16}|AIza[\w-]{35}|xox[abeprs]-[\w-]{10,256}|hf_\w{30,64}"
    r"|eyJ[\w-]{8,4096}\.eyJ[\w-]{8,8192}\.[\w-]{8,4096}"
    r")(?![\w-])"
    r"|-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----(?s:.{0,20000}?)(?:-----END [A-Z ]{0,40}KEY-----|\Z)"
)

_BUILT_IN = (
    Pattern("email", re.compile(_EMAIL), mark="@"),
    Pattern("phone", re.compile(_PHONE), check=_is_phone),
    Pattern("card", re.compile(_CARD), check=luhn),
    Pattern("iban", re.compile(_IBAN), check=mod_97),
    Pattern("key", re.compile(_KEY)),
)

#: By name, in the order in which they are tried.
BUILT_IN: Mapping[str, Pattern] = {pattern.label: pattern for pattern in _BUILT_IN}


def named(expressions: Mapping[str, str]) -> tuple[Pattern, ...]:
    """The operator's own. Raises re.error."""
    return tuple(Pattern(label, re.compile(given)) for label, given in expressions.items())
