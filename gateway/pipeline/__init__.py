"""serve_turn(): the one path from a checked request to a durable turn.

    place (resolve, classify) → next state of the parent → prompt (extending recorded ids)
    → generate → parse → commit → Finished

`Ended` and `Finished` are told after their turns are durable, so whoever encodes them can only
tell the client what will not be lost.
"""

from gateway.pipeline.events import Ended, Finished, Listener, Piece, Started
from gateway.pipeline.prompts import serve_each
from gateway.pipeline.serve import Pipeline

__all__ = ["Ended", "Finished", "Listener", "Piece", "Pipeline", "Started", "serve_each"]
