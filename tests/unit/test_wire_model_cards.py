from __future__ import annotations

from typing import Any

import pytest

from gateway.errors import InvalidRequest
from gateway.wire.model_cards import anthropic_card, anthropic_list

NAMES = ("a", "b", "c", "d", "e")


def test_a_card_has_what_clients_of_the_messages_api_read() -> None:
    assert anthropic_card("tiny") == {
        "type": "model",
        "id": "tiny",
        "display_name": "tiny",
        "created_at": "1970-01-01T00:00:00Z",
    }


@pytest.mark.parametrize(
    ("query", "ids", "more"),
    [
        ({}, "abcde", False),
        ({"limit": "2"}, "ab", True),
        ({"limit": "5"}, "abcde", False),
        ({"limit": "2", "after_id": "b"}, "cd", True),
        ({"limit": "2", "after_id": "c"}, "de", False),
        ({"after_id": "e"}, "", False),
        ({"limit": "2", "before_id": "d"}, "bc", True),
        ({"limit": "3", "before_id": "d"}, "abc", False),
        ({"before_id": "a"}, "", False),
    ],
)
def test_a_page_is_what_its_query_asks_for(query: dict[str, str], ids: str, more: bool) -> None:
    page: dict[str, Any] = anthropic_list(NAMES, query)
    assert [card["id"] for card in page.pop("data")] == list(ids)
    first, last = (ids[0], ids[-1]) if ids else (None, None)
    assert page == {"first_id": first, "last_id": last, "has_more": more}


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ({"limit": "0"}, "limit"),
        ({"limit": "1001"}, "limit"),
        ({"limit": "-1"}, "limit"),
        ({"limit": "x"}, "limit"),
        ({"limit": "9" * 9000}, "limit"),
        ({"after_id": "z"}, "after_id"),
        ({"before_id": "z"}, "before_id"),
    ],
)
def test_a_query_that_names_no_page_is_refused(query: dict[str, str], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        anthropic_list(NAMES, query)
    assert caught.value.param == param
