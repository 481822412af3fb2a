"""The Messages API, in the order in which a request meets it.

handlers, read (body to Generation), schema (typed structs), normalise (messages to turns).
"""
