"""What a chat template writes in the place of an image or audio.

An engine counts on one mark for each part, and puts what it sees or hears there. A template is
opaque code, so it is asked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from gateway.errors import InvalidRequest
from gateway.records import Media, Message
from gateway.tokens.template import ChatTemplate
from gateway.tokens.tokenizer import Tokenizer

#: By kind, the ids that stand for one part, and how often each does.
Marks = Mapping[str, Mapping[int, int]]

_TEXTS = ({"type": "text", "text": "Ux1"}, {"type": "text", "text": "Ux2"})


def marks_of(template: ChatTemplate, tokenizer: Tokenizer, kinds: Iterable[str]) -> Marks:
    """The marks of those kinds that the template has a place for.

    Only ids of tokens of their own count: none of them is written by chance.
    """
    found: dict[str, Mapping[int, int]] = {}
    without = _ids(template, tokenizer, _TEXTS)
    for kind in kinds if without else ():
        added = Counter(_ids(template, tokenizer, [_TEXTS[0], {"type": kind}, _TEXTS[1]]))
        added.subtract(without)
        own = {id_: n for id_, n in added.items() if n > 0 and id_ in tokenizer.added_ids}
        if own:
            found[kind] = own
    return found


def is_marked(ids: Sequence[int], media: Sequence[Media], marks: Marks) -> bool:
    """Whether a prompt [P] has exactly the marks of its images and audio.

    Text may hold a mark, as a model or its user may write anything, and a template may leave a
    part out.
    """
    expected: Counter[int] = Counter()
    for part in media:
        if part.kind not in marks:
            return False
        expected.update(marks[part.kind])
    return all(ids.count(id_) == count for id_, count in expected.items())


def _ids(
    template: ChatTemplate, tokenizer: Tokenizer, content: Sequence[Mapping[str, str]]
) -> list[int]:
    message: Message = {"role": "user", "content": content}
    try:
        return tokenizer.encode(template.render([message], generate=True, kwargs={}))
    except InvalidRequest:
        return []
