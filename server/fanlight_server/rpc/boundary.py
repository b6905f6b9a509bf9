"""The outermost layer of every method, those of health and reflection too.

In: bytes are parsed here, inside the boundary, so that malformed ones get a clean status. Out: whatever is raised
becomes a status of the one error table; the text of an exception never reaches a client. Every call leaves one line in
the access log and counts as open, so that a drain can wait for it. Knows no particular method.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from typing import Any, NoReturn, TypeAlias

import grpc
import grpc.aio

from fanlight_server.convert.failures import REQUEST_ID_TRAILER, status_text_of, trailers_of
from fanlight_server.lifecycle import Lifecycle
from fanlight_server.rpc.access_log import log_call
from fanlight_server.rpc.call import Call, set_current_call
from fanlight_server.rpc.wire import MessageStream, parse
from fanlight_server.status import ErrorReason, Refusal, ServiceError, StreamLostError, draining_error, explain

WORK_PREFIX = "/fanlight."
"""Methods that a drain waits for; the others (health, reflection) may stay open for ever."""

_SECONDS_TO_HEAR_A_CALLER_OUT = 0.2

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


class Boundary(grpc.aio.ServerInterceptor):
    """Wraps every handler that it is asked for."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        """The handler inside the boundary; one that refuses when there is no such method."""
        handler = await continuation(handler_call_details)
        method = handler_call_details.method
        return self._guard(method, handler or grpc.stream_stream_rpc_method_handler(_refuse_unknown_method))

    def _guard(self, method: str, handler: Handler) -> Handler:
        async def guarded(request: Any, context: Context) -> Any:
            return await self._serve(method, handler, request, context)

        make: Any = {
            (False, False): grpc.unary_unary_rpc_method_handler,
            (False, True): grpc.unary_stream_rpc_method_handler,
            (True, False): grpc.stream_unary_rpc_method_handler,
            (True, True): grpc.stream_stream_rpc_method_handler,
        }[bool(handler.request_streaming), bool(handler.response_streaming)]
        return make(guarded, request_deserializer=None, response_serializer=_or_bytes(handler.response_serializer))

    async def _serve(self, method: str, handler: Handler, request: Any, context: Context) -> Any:
        call = Call(method, context.peer())
        set_current_call(call)
        try:
            with self._lifecycle.open_call(is_work=method.startswith(WORK_PREFIX)):
                response = await _answer(handler, request, context)
                context.set_trailing_metadata(((REQUEST_ID_TRAILER, call.request_id),))
                call.code = grpc.StatusCode.OK.name
                return response
        except grpc.aio.AbortError:
            call.code = _name_of_code(context)
            raise
        except (StreamLostError, grpc.aio.BaseError):  # the latter comes out of a write to a client that is gone
            call.code = _code_of_lost_call(context)
        except asyncio.CancelledError:
            call.code = _code_of_lost_call(context)
            if not self._lifecycle.closing:
                raise
            await _refuse(context, call, draining_error().refusal)
        except Exception as error:  # whatever it is, a client sees only what the error table says
            await _refuse(context, call, explain(error, call.request_id))
        finally:
            log_call(call)


async def _answer(handler: Handler, request: Any, context: Context) -> Any:
    """Run the method. Streams are written here or by the method itself."""
    remaining = context.time_remaining()
    if remaining is not None and remaining <= 0:
        raise ServiceError(ErrorReason.DEADLINE_EXCEEDED, "the deadline of the call had passed when it arrived")
    behaviour = _behaviour(handler)
    if handler.request_deserializer is not None:
        raw_stream = handler.request_streaming
        deserialize: Any = handler.request_deserializer
        request = MessageStream(request, deserialize) if raw_stream else parse(deserialize, request)
    result = behaviour(request, context)
    if not inspect.isasyncgen(result):
        return await result
    async with aclosing(result):
        async for message in result:
            await context.write(message)
    return None


def _or_bytes(serialize: Callable[[Any], bytes] | None) -> Callable[[Any], bytes] | None:
    """What a method writes may be bytes already."""
    if serialize is None:
        return None
    return lambda message: message if type(message) is bytes else serialize(message)


def _behaviour(handler: Handler) -> Callable[[Any, Context], Any]:
    behaviour: Any = handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
    assert behaviour is not None
    return behaviour


async def _refuse(context: Context, call: Call, refusal: Refusal) -> NoReturn:
    call.code = refusal.code.name
    call.refuse(refusal)
    await context.abort(refusal.code, status_text_of(refusal), trailers_of(refusal, call.request_id))


async def _refuse_unknown_method(requests: Any, _context: Context) -> NoReturn:
    """A caller still writing when its status comes may read INTERNAL instead, so it is heard out for a moment."""
    with suppress(TimeoutError):
        await asyncio.wait_for(anext(aiter(requests), None), _SECONDS_TO_HEAR_A_CALLER_OUT)
    raise ServiceError(
        ErrorReason.UNSUPPORTED, "this server has no such method; check its name, and whether the server is older"
    )


def _name_of_code(context: Context) -> str:
    code: Any = context.code()
    return code.name if isinstance(code, grpc.StatusCode) else str(code)


def _code_of_lost_call(context: Context) -> str:
    """A passed deadline and a client that went away both arrive as a cancellation."""
    remaining = context.time_remaining()
    passed = remaining is not None and remaining <= 0
    return (grpc.StatusCode.DEADLINE_EXCEEDED if passed else grpc.StatusCode.CANCELLED).name
