"""Measures the bars of families: any checkpoint people use, against transformers' own answers."""
