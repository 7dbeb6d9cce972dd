"""Postgres: the meeting place of gateway, judge and trainer."""
