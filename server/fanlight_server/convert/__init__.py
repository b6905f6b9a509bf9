"""The one place that sees protobuf messages and engine types together.

    requests    messages of a client -> engine requests, or an error that names the field
    events      engine events -> messages of the server
    failures    refusals -> google.rpc.Status and fanlight.v1.Failure
    models      checkpoint, capacity and settings -> descriptions of model and server

Everything outside hands these objects through without looking into both kinds.
"""
