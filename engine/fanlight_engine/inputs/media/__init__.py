"""Media of prompts: from where they come, into tensors that a vision tower takes.

sources/     resolver, store (uploads), fetch (URLs): any source -> encoded bytes or checked tensors
images       encoded bytes -> the RGB picture that a person would see, within limits
video/       encoded bytes -> chosen frames with their times, within limits
processing   what a media processor is, and what it gives
wrapped/     the checkpoint's own image and video processors behind that
native/      Fanlight's own preprocessing, for checkpoints described by an ImageProcessingConfig
tensors      pixels and embeddings that came as tensors
pipeline     all of this in worker threads, once for equal media, cached
"""
