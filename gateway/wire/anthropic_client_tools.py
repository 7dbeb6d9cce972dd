"""Tools that Anthropic's API knows by a type alone, and that the client runs.

The original's models were trained with them. Others are told here what they do and take, in the
names that the client's own code for them reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

Schema = dict[str, Any]


class ClientTool(NamedTuple):
    """What a model is told of one tool."""

    name: str
    description: str
    schema: Schema


def _text(description: str) -> Schema:
    return {"type": "string", "description": description}


def _commands(*names: str) -> Schema:
    return {"type": "string", "enum": list(names), "description": "What to do."}


def _schema(required: tuple[str, ...], **properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": list(required)}


_RANGE: Schema = {
    "type": "array",
    "items": {"type": "integer"},
    "minItems": 2,
    "maxItems": 2,
    "description": "For view: the first and the last line of a file to show, counted from 1;"
    " -1 as the last means to the end.",
}
_LINE: Schema = {
    "type": "integer",
    "minimum": 0,
    "description": "For insert: the line after which the text goes, 0 for the beginning.",
}
_EDITS = {
    "file_text": _text("For create: the whole content of the file."),
    "old_str": _text("For str_replace: the text to replace, exactly as it stands in the file."),
    "insert_line": _LINE,
    "view_range": _RANGE,
}
_PATH = _text("The file, or for view also a directory.")
_NEW = _text("For str_replace: the text that takes its place.")
_INSERTED = _text("For insert: the text to insert.")

_BASH = ClientTool(
    "bash",
    "Runs a command in a bash session that stays open between calls.",
    _schema(
        (),
        command=_text("The command to run; needed unless the session is restarted."),
        restart={"type": "boolean", "description": "Whether to start the session anew instead."},
    ),
)
_FIRST_EDITOR = ClientTool(
    "str_replace_editor",
    "Views, creates and edits text files, and takes the last edit of a file back.",
    _schema(
        ("command", "path"),
        command=_commands("view", "create", "str_replace", "insert", "undo_edit"),
        path=_PATH,
        **_EDITS,
        new_str=_text(
            "For str_replace: the text that takes its place; for insert: the text to insert."
        ),
    ),
)
_EDITOR = ClientTool(
    "str_replace_based_edit_tool",
    "Views, creates and edits text files.",
    _schema(
        ("command", "path"),
        command=_commands("view", "create", "str_replace", "insert"),
        path=_PATH,
        **_EDITS,
        new_str=_NEW,
        insert_text=_INSERTED,
    ),
)
_MEMORY = ClientTool(
    "memory",
    "Keeps notes for later conversations in files below /memories. Look at that directory before"
    " a task, and write down what will be worth knowing.",
    _schema(
        ("command",),
        command=_commands("view", "create", "str_replace", "insert", "delete", "rename"),
        path=_text("A file or directory below /memories; not for rename."),
        **_EDITS,
        new_str=_NEW,
        insert_text=_INSERTED,
        old_path=_text("For rename: what to rename."),
        new_path=_text("For rename: its new path."),
    ),
)

#: By the type that a request gives.
CLIENT_TOOLS: Mapping[str, ClientTool] = {
    "bash_20241022": _BASH,
    "bash_20250124": _BASH,
    "text_editor_20241022": _FIRST_EDITOR,
    "text_editor_20250124": _FIRST_EDITOR,
    "text_editor_20250429": _EDITOR,
    "text_editor_20250728": _EDITOR,
    "memory_20250818": _MEMORY,
}
