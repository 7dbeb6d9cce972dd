"""Wire dialects: a client's bytes to a TurnRequest, a reply to a client's bytes."""
