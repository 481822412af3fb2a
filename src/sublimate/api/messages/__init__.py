"""The Messages API, in the order in which a request meets it.

handlers, read (body to Generation), schema and content (typed structs), tools, normalise (messages
to turns), edits, answers.
"""
