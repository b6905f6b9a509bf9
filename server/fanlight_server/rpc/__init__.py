"""What surrounds every method: parsing and refusing, trailers, the access log, numbering and heartbeats of streams."""
