"""Which session a request belongs to and which turn it continues. Pure: look-ups are the store's.

In order: the session that the client names; ids that were minted here and come back (a turn's,
its tool calls'); the deepest stored prefix of the messages; an outline of the conversation where
only formatting differs; otherwise a new session.
"""

from gateway.resolve.beside import Branch, beside, given_up, is_beside, left_before
from gateway.resolve.chain import (
    Prefix,
    both_hashes,
    chain,
    chained,
    head_hash,
    prefixes,
    request_hash,
    seed,
)
from gateway.resolve.echoes import Echo, EchoKind, call_key, echoed, echoed_near, echoes_of
from gateway.resolve.names import told_session
from gateway.resolve.retries import RETRY_WINDOW_S, retried
from gateway.resolve.rollback import Leaf, may_roll_back, rolled_back
from gateway.resolve.rules import NamedSession, resolve
from gateway.resolve.voices import Voices

__all__ = [
    "RETRY_WINDOW_S",
    "Branch",
    "Echo",
    "EchoKind",
    "Leaf",
    "NamedSession",
    "Prefix",
    "Voices",
    "beside",
    "both_hashes",
    "call_key",
    "chain",
    "chained",
    "echoed",
    "echoed_near",
    "echoes_of",
    "given_up",
    "head_hash",
    "is_beside",
    "left_before",
    "may_roll_back",
    "prefixes",
    "request_hash",
    "resolve",
    "retried",
    "rolled_back",
    "seed",
    "told_session",
]
