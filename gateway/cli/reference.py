"""The reference of the HTTP API, written from its OpenAPI document: `docs/api.md`.

`python -m gateway.cli.reference < openapi.json > docs/api.md` writes it; a test holds the file to
what a gateway says of itself.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

Schema = Mapping[str, Any]

HEAD = """\
# API reference

Written by `python -m gateway.cli.reference` from the OpenAPI document, which a gateway has at \
`/admin/v1/openapi.json`. Agents use the routes under `/v1` with a key of role `agent` or \
`rollout`, operators those under `/admin/v1` with a key of role `admin`. A key is sent as \
`Authorization: Bearer KEY` or `x-api-key: KEY`.

An admin key reads and changes what is its tenant's. Keys of the operators' tenant \
(`gateway.operators`, `default` unless set) also make tenants, try and change the rules of \
classification, drain engines, and manage the keys of any tenant by `tenant_id`; they read no \
other tenant's conversations. A lineage is its tenant's to promote, roll back, pin and pause while \
no valid key of another tenant names it; what several use, operators alone move (403 else).

Lists come in pages: `next` of one is the `cursor` of the one after it. Answers to GET have an \
`ETag`; with `If-None-Match` what has not changed is a 304, with `If-Match` a change is made only \
to what was seen (412 else). What makes something new (`POST /keys`, `/keys/{key_id}/rotate`, \
`/tenants`, all that judges again) takes an `Idempotency-Key`: sent again within a day, the same \
request makes nothing new and is answered with what was made, without a secret; another request \
under that name is a 409. Draining and resuming an engine take one too, so that what is sent again \
late undoes nothing. All other changes are the same however often they are sent. Errors are \
`application/problem+json` (RFC 9457), under `/v1` those of the dialect. Times are seconds since \
the epoch. Every change leaves an entry at `/admin/v1/audit`, and a key that is revoked, expired \
or changed is treated so everywhere within 5 s.

```sh
admin() { curl --fail-with-body -sS -H "Authorization: Bearer $ADMIN_KEY" "$@"; }
api="$GATEWAY_URL/admin/v1"
admin "$api/sessions?limit=5&status=open"
admin "$api/turns/$TURN_ID?ids=true"
admin "$api/turns/$TURN_ID/explain"
admin "$api/scores?by=version"
admin "$api/tenants" -H "Idempotency-Key: acme-1" --json '{"name": "acme"}'
key=$(admin "$api/keys" -H "Idempotency-Key: robot-1" --json '{"name": "robot", \
"limits": {"requests_per_minute": 60}}')
id=$(echo "$key" | python3 -c 'import json, sys; print(json.load(sys.stdin)["id"])')
admin -X POST "$api/keys/$id/rotate" --json '{"grace_s": 3600}'
admin -X PATCH "$api/keys/$id" --json '{"capture": false}'
admin -X POST "$api/keys/$id/revoke"
admin "$api/rules/test" --json '{"body": {"model": "nextstate", "messages": \
[{"role": "user", "content": "Name this chat."}]}, "rules": {"auxiliary_patterns": \
["last_user:name this chat"]}}'
tag=$(admin -o /dev/null -D - "$api/rules" | tr -d '\\r' | sed -n 's/^etag: //p')
admin -X PUT "$api/rules" -H "If-Match: $tag" --json \
  '{"auxiliary_patterns": ["last_user:name this chat"]}'
admin "$api/policies?limit=5"
admin -X POST "$api/policies/0/pin?reason=release"
admin -X POST "$api/policies/0/unpin"
admin -X POST "$api/capture/pause?reason=maintenance"
admin -X POST "$api/capture/resume"
admin "$api/engines"
admin -X POST "$api/turns/$TURN_ID/rejudge"
admin -X POST "$api/sessions/$SESSION_ID/close"
admin "$api/export?ids=true" > turns.jsonl
admin "$api/import" -H "Content-Type: application/x-ndjson" --data-binary @turns.jsonl
admin "$api/export?format=parquet" > turns.parquet
admin "$api/audit?limit=3"
```
"""

_TITLES = {
    "agents": "For agents",
    "feedback": "Feedback and ends of sessions",
    "operating": "Operating",
    "sessions": "Sessions and turns",
    "learning": "Learning",
    "actions": "Actions",
    "pauses": "Pauses",
    "engines": "Engines",
    "rules": "Rules of classification",
    "keys": "Keys",
    "tenants": "Tenants",
    "transfer": "Export and import",
    "privacy": "Privacy",
    "health": "Health",
}


def reference(document: Schema) -> str:
    """The page, the same for the same document."""
    sections: dict[str, list[str]] = {}
    for path, operations in document["paths"].items():
        shared = operations.get("parameters", ())
        for method, operation in operations.items():
            if method == "parameters":
                continue
            tag = operation.get("tags", ["health"])[0]
            lines = list(_operation(path, method, operation, shared))
            sections.setdefault(tag, []).append("\n".join(lines))
    known = [tag for tag in _TITLES if tag in sections]
    order = [*known, *sorted(set(sections) - {*known})]
    parts = [
        f"## {_TITLES.get(tag, tag.capitalize())}\n\n" + "\n\n".join(sections[tag]) for tag in order
    ]
    shapes = "\n\n".join(_shapes(document["components"]["schemas"]))
    return "\n".join([HEAD, *(f"{part}\n" for part in parts), f"## Objects\n\n{shapes}\n"])


def _operation(
    path: str, method: str, operation: Schema, shared: Iterable[Schema]
) -> Iterator[str]:
    yield f"### `{method.upper()} {path}`"
    if said := operation.get("description"):
        yield f"\n{_flowing(said)}"
    rows = []
    for one in (*shared, *operation.get("parameters", ())):
        needed = ", needed" if one.get("required") else ""
        rows.append((f"`{one['name']}`", f"{one['in']}{needed}", _type(one["schema"])))
    if rows:
        yield from _table(("parameter", "where", "type"), rows)
    body = operation.get("requestBody", {}).get("content", {})
    for kind, one in body.items():
        yield f"\nBody (`{kind}`): {_type(one['schema'])}"
    answers = []
    for status, one in operation["responses"].items():
        told = {_type(each["schema"]) for each in one.get("content", {}).values()}
        if status[0] == "2":
            answers.append(f"{status} {' or '.join(sorted(told))}".strip())
        else:
            answers.append(status)
    yield f"\nAnswers: {', '.join(answers)}"


def _shapes(schemas: Schema) -> Iterator[str]:
    for name in sorted(schemas):
        schema = schemas[name]
        if "properties" not in schema:
            continue
        lines = [f"### {name}"]
        if said := schema.get("description"):
            lines.append(f"\n{_flowing(said)}")
        needed = schema.get("required", ())
        rows = [
            (f"`{field}`", _type(one) + ("" if field in needed else ", optional"))
            for field, one in schema["properties"].items()
        ]
        lines += _table(("field", "type"), rows)
        yield "\n".join(lines)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    yield f"\n| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"


def _type(schema: Schema) -> str:
    """A type in few words; what is an object of its own is linked."""
    if reference := schema.get("$ref"):
        name = reference.rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if options := schema.get("anyOf"):
        return " or ".join(dict.fromkeys(_type(one) for one in options))
    if values := schema.get("enum"):
        return " or ".join(f"`{value}`" for value in values)
    if "const" in schema:
        return f"`{schema['const']}`"
    kind = schema.get("type", "any")
    if isinstance(kind, list):
        return " or ".join(kind)
    if kind == "array":
        return f"array of {_type(schema.get('items', {}))}"
    if kind == "string" and "format" in schema:
        return str(schema["format"])
    return f"{kind}{_bounds(schema)}"


def _bounds(schema: Schema) -> str:
    words = (
        ("minimum", "≥ "), ("exclusiveMinimum", "> "), ("maximum", "≤ "),
        ("exclusiveMaximum", "< "), ("maxLength", "at most "),
    )  # fmt: skip
    found = [f"{word}{schema[name]:g}" for name, word in words if name in schema]
    return f" ({', '.join(found)})" if found else ""


def _flowing(text: str) -> str:
    """Paragraphs on a line each."""
    return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n"))


def main() -> None:
    """Read a document from standard input and print the page."""
    sys.stdout.write(reference(json.load(sys.stdin)))


if __name__ == "__main__":
    main()
