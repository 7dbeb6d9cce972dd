"""What every endpoint for agents has: a key, a dialect for its errors, the log's context."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from http import HTTPStatus
from typing import ClassVar
from urllib.parse import parse_qs

from starlette.types import Receive, Scope, Send

from gateway.api.direct_cycle import direct_of
from gateway.api.exchange import ClientLeft, Exchange, client_request_id, encoded
from gateway.api.services import Services
from gateway.errors import InvalidRequest, NextstateError
from gateway.records import new_id
from gateway.telemetry import get_logger, request_context
from gateway.wire.base import Dialect

log = get_logger(__name__)

#: Nobody is there to be told; nginx's word for it, for the log.
_CLIENT_LEFT = 499
_QUERY_FIELDS = 100


class Endpoint(ABC):
    """An ASGI endpoint that answers errors in its dialect and binds the log's context."""

    #: What is asked for, as metrics tell it apart: `generate` a reply, or `read`.
    operation: ClassVar[str] = "read"

    def __init__(self, services: Services, dialect: Dialect) -> None:
        self.services = services
        self.dialect = dialect

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        clock = time.perf_counter()
        headers = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
        }
        named = client_request_id(headers) if "x-request-id" in headers else None
        exchange = Exchange(headers, receive, send, new_id(), named, direct_of(scope))
        names = {"request_id": exchange.request_id.hex}
        if named is not None:
            names["client_request_id"] = named
        with request_context(**names):
            try:
                await self._answer(exchange, scope)
            except NextstateError as error:
                await self._fail(exchange, error)
            except ClientLeft:
                exchange.status = _CLIENT_LEFT
                log.info("client_left", status=_CLIENT_LEFT)
            except Exception:
                log.exception("request_failed")
                await self._fail(exchange, NextstateError("unexpected"))
            finally:
                self.services.metrics.answered(
                    self.dialect_of(headers).name,
                    self.operation,
                    _CLIENT_LEFT if exchange.status is None else exchange.status,
                    time.perf_counter() - clock,
                )

    def dialect_of(self, headers: Mapping[str, str]) -> Dialect:  # noqa: ARG002 - where there is but one
        """The dialect that a request is of."""
        return self.dialect

    @abstractmethod
    async def _answer(self, exchange: Exchange, scope: Scope) -> None: ...

    async def _fail(self, exchange: Exchange, error: NextstateError) -> None:
        dialect = self.dialect_of(exchange.headers)
        status, headers, body = dialect.error(error, exchange.request_id)
        level = log.info if status < HTTPStatus.INTERNAL_SERVER_ERROR else log.warning
        level("refused", status=status, error=type(error).__name__, why=error.message)
        if not exchange.begun:
            await exchange.answer(status, body, encoded(headers))


def query_of(scope: Scope) -> dict[str, str]:
    """The last value of each name in a query. Raises InvalidRequest for one with too many."""
    try:
        parsed = parse_qs(scope["query_string"].decode("latin-1"), max_num_fields=_QUERY_FIELDS)
    except ValueError:
        raise InvalidRequest(f"At most {_QUERY_FIELDS} fields of a query are read.") from None
    return {name: values[-1] for name, values in parsed.items()}
