"""The surfaces: what clients may ask, one module or folder each.

routes (paths to handlers), messages (the Messages API), conversation (what other surfaces make
of their messages), openai, ollama, models, probes, openapi. They stand on
the edge, which knows none of them: it is given the routes when its process starts.
"""
