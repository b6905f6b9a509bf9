"""Measures the bars of decoding: how near the engine comes to what the machine allows, and to other engines."""
