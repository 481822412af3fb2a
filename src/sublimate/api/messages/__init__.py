"""The Messages API, in the order in which a request meets it.

handlers (the story of one request), schema, normalise, prepare (body to token ids).
"""
