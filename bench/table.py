"""A report as one table."""

from __future__ import annotations

from typing import Any

from rich.table import Table

#: Figure, heading, digits after the point, whether the multiple of the baseline stands beside it.
_COLUMNS = (
    ("cpu_us_small", "small\nµs", 0, True),
    ("cpu_us_small_busy", "busy\nµs", 0, True),
    ("cpu_us_agentic", "agentic\nµs", 0, True),
    ("cpu_us_chunk", "chunk\nµs", 1, True),
    ("capacity_small", "small\n/s/core", 0, False),
    ("capacity_agentic", "agentic\n/s/core", 0, False),
    ("added_ms_p50", "+ms\np50", 2, False),
    ("added_ms_p99", "+ms\np99", 2, False),
    ("ttft_added_ms_p50", "+ttft ms\np50", 2, False),
    ("ttft_added_ms_p99", "+ttft ms\np99", 2, False),
    ("rss_mb", "RSS\nMB", 0, True),
)


def table(report: dict[str, Any]) -> Table:
    """CPU is that of the system's own processes; in brackets the multiple of the baseline's."""
    baseline = report["baseline"]
    shown = Table(title="Cost of a request", caption=_caption(report), caption_justify="left")
    shown.add_column("system", no_wrap=True)
    for _, heading, _, _ in _COLUMNS:
        shown.add_column(heading, justify="right", no_wrap=True)
    for name, values in report["systems"].items():
        ratios = report["ratios"].get(name, {})
        cells = []
        for figure, _, digits, compared in _COLUMNS:
            cell = f"{values[figure]:.{digits}f}"
            if compared and figure in ratios and name != baseline:
                cell += f" ({ratios[figure]:.2f}x)"
            cells.append(cell)
        shown.add_row(name, *cells)
    return shown


def _caption(report: dict[str, Any]) -> str:
    text = (
        f"Medians of {report['rounds']} rounds; (x): multiple of {report['baseline']}. small: 8 "
        "tokens, 8 requests at once; busy: 64 of them. agentic: 57 kB, 36 to 44 messages, 8 tools, "
        "200 tokens at once; first token: of such a request. chunk: a token of 8 streams, 10 ms "
        "apart. +ms: added to small."
    )
    if "nextstate" in report["systems"]:
        values, extended = report["systems"]["nextstate"], report["extended"]
        text += (
            f"\nnextstate records: {values['requests']} requests before its memory was read, "
            f"{extended['extended']} of {extended['followed']} extended the ids on record; its "
            f"PostgreSQL takes {values['store_cpu_us_small']:.0f} µs a small request and "
            f"{values['store_cpu_us_agentic']:.0f} µs an agentic one."
        )
    return text
