"""Messages and stubs of protobuf package fanlight.v1, made by tools/generate_protos.py."""
