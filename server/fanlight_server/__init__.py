"""The gRPC service over the engine: contract fanlight.v1 in, engine requests out; and the command `fanlight serve`.

    convert/           the one place that sees protobuf messages and engine types together
    status             the one error table: exception -> reason -> status code
    rpc/               what surrounds every method: parsing, refusals, trailers, access log, channel options
    services/          one file per service of the contract
    chat_session       the states of a chat and its tree of turns
    active_requests    which request ids run, ended, or were cancelled early
    backend            what the server needs from the engine, as a protocol
    lifecycle          loading, serving, draining; which calls are open
    health             grpc.health.v1
    server             puts it all together
    cli/               the command

Nothing here knows tensors, tokenizers or batches.
"""
