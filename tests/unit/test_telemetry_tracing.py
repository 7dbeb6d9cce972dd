"""Which turns are traced, under which ids, and what is believed of a client."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from uuid import UUID

import pytest

from gateway.config import TracingSettings
from gateway.records import new_id
from gateway.telemetry.tracing import Context, Traces, generating, of_client, of_turn

TURN = UUID("019adbd4-0000-7abc-8def-0123456789ab")


def traces(share: float) -> Traces:
    made = Traces.configured(
        TracingSettings(endpoint="http://127.0.0.1:9/v1/traces", sample=share), "test"
    )
    assert made is not None
    return made


def test_a_turns_id_is_its_trace():
    root = of_turn(TURN)
    assert root.traceparent == "00-019adbd400007abc8def0123456789ab-8def0123456789ab-01"
    asked = generating(root)
    assert (asked.trace, asked.span) == (root.trace, 0x8DEF0123456789AA)


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00",  # not sampled
        "00-00000000000000000000000000000000-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
        "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\nX-Other: 1",
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01" * 1000,
    ],
)
def test_what_is_no_sampled_traceparent_is_left_alone(header: str | None):
    assert of_client(header) is None


def test_a_client_that_traces_is_followed():
    found = of_client("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-03")
    assert found == Context(0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331)


async def test_every_process_samples_the_same_turns():
    ids = [new_id() for _ in range(400)]
    none, tenth, half, whole = (traces(share) for share in (0.0, 0.1, 0.5, 1.0))
    again = traces(0.5)
    kept = [one for one in ids if half.samples(one)]
    # 62 random bits: the upmost of them says which half an id is in.
    assert kept == [one for one in ids if not one.int >> 61 & 1]
    assert kept == [one for one in ids if again.samples(one)]
    assert {one for one in ids if tenth.samples(one)} < {*kept}
    assert not any(none.samples(one) for one in ids)
    assert all(whole.samples(one) for one in ids)
    # A client's own trace goes on whatever the share is.
    client = Context(1, 2)
    assert none.serving(TURN, client) == Context(1, TURN.int & (2**64 - 1))
    assert none.serving(TURN, None) is None
    # Nothing waits, so that a collector that is away costs the end of a process nothing.
    await asyncio.gather(*(one.close() for one in (none, tenth, half, whole, again)))


def test_without_an_endpoint_nothing_is_loaded():
    assert Traces.configured(TracingSettings(), "gateway") is None
    program = (
        "import sys; import gateway.pipeline.serve, judge.jobs, trainer.lives;"
        "print(sorted(name for name in sys.modules"
        " if name.startswith(('opentelemetry.sdk', 'opentelemetry.exporter', 'google.protobuf'))))"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert (done.stdout, done.returncode) == ("[]\n", 0), done.stderr
