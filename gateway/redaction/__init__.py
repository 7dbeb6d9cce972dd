"""What is taken out of conversations before anything is stored."""

from gateway.redaction.redactor import REDACTED, Redactor

__all__ = ["REDACTED", "Redactor"]
