"""The one place that sees protobuf messages and engine types together.

    requests    messages of a client -> engine requests, or an error that names the field
    media       images, videos and tensors of a client -> engine sources, likewise
    events      engine events -> messages of the server
    counts      questions about prompts and texts, and their answers
    uploads     MediaService's questions, and what is held
    failures    refusals -> google.rpc.Status and fanlight.v1.Failure
    models      checkpoint, capacity and settings -> descriptions of model and server
    values      small values that several of these share

Everything outside hands these objects through without looking into both kinds.
"""
