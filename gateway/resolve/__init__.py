"""Which session a request belongs to and which turn it continues. Pure: look-ups are the store's.

In order: the session that the client names; ids that were minted here and come back (a turn's,
its tool calls'); the deepest stored prefix of the messages; an outline of the conversation where
only formatting differs; otherwise a new session.
"""

from gateway.resolve.chain import Prefix, chain, head_hash, prefixes, request_hash, seed
from gateway.resolve.echoes import Echo, EchoKind, call_key, echoed, echoes_of
from gateway.resolve.names import told_session
from gateway.resolve.retries import RETRY_WINDOW_S, retried
from gateway.resolve.rules import NamedSession, resolve

__all__ = [
    "RETRY_WINDOW_S",
    "Echo",
    "EchoKind",
    "NamedSession",
    "Prefix",
    "call_key",
    "chain",
    "echoed",
    "echoes_of",
    "head_hash",
    "prefixes",
    "request_hash",
    "resolve",
    "retried",
    "seed",
    "told_session",
]
