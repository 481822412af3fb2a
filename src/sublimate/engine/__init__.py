"""The resident loop's Python sides: process (its own process), inprocess (in the caller's).

This file stays empty: the engine process imports only the core, msgspec and the standard library.
"""
