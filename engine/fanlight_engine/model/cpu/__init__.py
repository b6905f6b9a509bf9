"""Decoding on a CPU with our own kernels: a small C library, compiled at the first start, that torch's threads run.

processor      what the processor can do, and the flags of the compiler that go with it
build          the library compiled from kernels/, and kept in the user's cache
structures     what is handed over to C, as ctypes sees it
library        the library loaded, behind functions of tensors
facts          what a decoder is, as plain facts; recognised from its modules by `recognition`, from what it does in
               a small step by `observation`
fused_decoder  a whole decode step in one call, and the proof at load that it gives what the decoder gives
linear         linear modules that read their weights at the speed of the memory, for decoders that stay as they are
"""
