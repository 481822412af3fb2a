"""Ollama's API, for the many tools that speak only that.

errors, request (bodies to generations), frames (lines and whole answers), models (what is served),
joined in handlers.
"""
