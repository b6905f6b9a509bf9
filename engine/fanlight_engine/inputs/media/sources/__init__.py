"""Where media come from: any source -> encoded bytes or checked tensors.

    resolver            all of these for the media of one request
    store               uploads of each principal, under their digests: held, partial, read, dropped
      uploads           one upload as it comes in
      contents          what is held, and what goes first when room is needed; the books, without the bytes
      bodies            where the bytes are: in memory, or
      store_on_disk     in a directory that survives restarts and crashes
      facts             what a file is, from its first bytes
      background        threads, and work that must not stop halfway
    safetensors_file    tensors of an uploaded file
    fetch               files of URLs, without becoming a stranger's hand in the operator's network
      url_rules         which URLs may be fetched at all
      addresses         is an address one of the public internet?

Nothing here opens a picture or a clip beyond its header.
"""
