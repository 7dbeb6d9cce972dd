"""The dashboard's files: what is served, under which policy, and that nothing else is asked for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from gateway.api import dashboard, errors

STATIC = Path(dashboard.__file__).parent / "static"
OURS = [path for path in sorted(STATIC.rglob("*")) if path.is_file() and "vendor" not in path.parts]


@pytest.fixture
def client() -> Iterator[TestClient]:
    app = FastAPI()
    errors.install(app)
    app.include_router(dashboard.routes())
    with TestClient(app, follow_redirects=False) as client:
        yield client


class Page(HTMLParser):
    """What a page loads, and what markup a strict policy forbids."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.inline: list[str] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag in ("script", "link", "img"):
            self.loaded.append(given.get("src") or given.get("href") or "")
        self.inline += [
            f"{tag} {name}" for name in given if name.startswith("on") or name == "style"
        ]
        if tag == "style" or (tag == "script" and "src" not in given):
            self.inline.append(tag)
        if given.get("id"):
            self.ids.append(str(given["id"]))


def test_the_page_loads_only_files_that_are_there(client: TestClient) -> None:
    answer = client.get("/dashboard")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    page = Page()
    page.feed(answer.text)
    assert page.inline == []
    assert len(page.ids) == len(set(page.ids))
    assert len(page.loaded) == 5
    for name in page.loaded:
        # Relative, so that the page also works behind a proxy's prefix.
        assert not name.startswith(("/", "http"))
        assert client.get(f"/{name}").status_code == 200


def test_modules_import_only_files_that_are_there() -> None:
    imports = 0
    for path in OURS:
        if path.suffix == ".js":
            for name in re.findall(r'from "([^"]+)"', path.read_text()):
                assert (path.parent / name).resolve().is_file(), (path, name)
                imports += 1
    assert imports > 20


def test_nothing_names_another_host_or_writes_markup() -> None:
    for path in OURS:
        text = path.read_text()
        hosts = set(re.findall(r"https?://[^\s\"'`)]+", text)) - {"http://www.w3.org/2000/svg"}
        assert hosts == set(), path
        for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
            assert word not in text, (path, word)


def test_the_policy_allows_only_what_is_ours(client: TestClient) -> None:
    for name in ("/dashboard", "/dashboard/app.js", "/dashboard/views/session.js"):
        headers = client.get(name).headers
        policy = dict(
            part.strip().partition(" ")[::2]
            for part in headers["content-security-policy"].split(";")
        )
        assert policy["default-src"] == "'none'"
        assert {policy[one] for one in ("script-src", "style-src", "img-src", "connect-src")} == {
            "'self'"
        }
        assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"


def test_a_file_that_has_not_changed_is_not_sent_again(client: TestClient) -> None:
    tag = client.get("/dashboard/app.js").headers["etag"]
    again = client.get("/dashboard/app.js", headers={"if-none-match": tag})
    assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize(
    "name",
    ["../__init__.py", "..%2f__init__.py", "%2e%2e/__init__.py", "nothing.js", "static/app.js"],
)
def test_nothing_else_can_be_read(client: TestClient, name: str) -> None:
    answer = client.get(f"/dashboard/{name}")
    assert answer.status_code == 404
    assert "from __future__" not in answer.text


def test_a_slash_leads_to_the_page(client: TestClient) -> None:
    answer = client.get("/dashboard/")
    assert (answer.status_code, answer.headers["location"]) == (308, "../dashboard")


def test_the_chart_library_comes_with_its_licence(client: TestClient) -> None:
    assert "MIT License" in client.get("/dashboard/vendor/uplot-LICENSE.txt").text
    assert "uPlot (v1.6.32)" in client.get("/dashboard/vendor/uplot.js").text[:100]
