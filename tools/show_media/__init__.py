"""Measures the bars of media, from every source of a picture or clip to tokens, and prints them: `make show-media`."""
