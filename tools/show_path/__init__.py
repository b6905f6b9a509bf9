"""Measures the bars of the whole path, from a picture to tokens, and prints them as a table: `make show-path`."""
