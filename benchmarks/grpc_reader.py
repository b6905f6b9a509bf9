"""The client of benchmarks over gRPC, in a process of its own: opens many streams at once and counts what comes.

Orders come as lines of JSON on standard input, and each is answered by a line. Messages are left as bytes, so that
reading costs the same whatever is in them. Knows no message of any contract.

    {"address": "localhost:1", "method": "/package.Service/Method", "request": "hex", "streams": 64}
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

import grpc.aio


async def read_streams(address: str, method: str, request: bytes, streams: int) -> dict[str, Any]:
    """Sizes of the messages of the first stream, and of all: how many came, their bytes, and in how many seconds."""
    options = [("grpc.max_receive_message_length", -1)]
    async with grpc.aio.insecure_channel(address, options) as channel:
        open_stream = channel.unary_stream(method, request_serializer=None, response_deserializer=None)
        begun = time.perf_counter()
        sizes = await asyncio.gather(*(_read(open_stream(request)) for _ in range(streams)))
        seconds = time.perf_counter() - begun
    counted = [len(one) for one in sizes]
    return {"sizes": sizes[0], "messages": sum(counted), "bytes": sum(map(sum, sizes)), "seconds": seconds}


async def _read(call: Any) -> list[int]:
    return [len(message) async for message in call]


def main() -> None:
    """Carry out orders until the input ends."""
    for line in sys.stdin:
        order = json.loads(line)
        order["request"] = bytes.fromhex(order["request"])
        print(json.dumps(asyncio.run(read_streams(**order))), flush=True)


if __name__ == "__main__":
    main()
