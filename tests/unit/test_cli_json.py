"""Every command that answers has a form for programs."""

from __future__ import annotations

from collections.abc import Iterator

import click
import typer

from gateway.cli.commands import app

#: Run until they are told to stop, show the log as it is, or write a file of JSON themselves.
WITHOUT = {"setup", "serve", "logs", "export", "demo"}


def leaves(command: click.Command, names: tuple[str, ...] = ()) -> Iterator[tuple[str, set[str]]]:
    if commands := getattr(command, "commands", None):
        for name, part in commands.items():
            yield from leaves(part, (*names, name))
    else:
        yield " ".join(names), {option for one in command.params for option in one.opts}


def test_each_command_that_answers_takes_json():
    found = dict(leaves(typer.main.get_command(app)))
    assert {name for name, options in found.items() if "--json" not in options} == WITHOUT


def test_shells_complete_commands():
    assert {"--install-completion", "--show-completion"} <= {
        option for one in typer.main.get_command(app).params for option in one.opts
    }
