"""serve_turn(): the one path from a checked request to a durable turn.

    place (resolve, classify) → next state of the parent → prompt (extending recorded ids)
    → generate → parse → commit → Finished

`Finished` is yielded after the turn is durable, so whoever encodes it can only tell the client
what will not be lost.
"""

from gateway.pipeline.serve import Finished, Piece, Pipeline, Started

__all__ = ["Finished", "Piece", "Pipeline", "Started"]
