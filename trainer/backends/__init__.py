"""Where the numbers are made: one protocol, one module a framework."""
