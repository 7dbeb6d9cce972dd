"""The one-machine stack: PostgreSQL, the engine, the gateway and its workers under one command."""
