"""Message batches: many requests at once, answered when nobody waits, kept until they are read.

store (SQLite on a thread of its own), inner (a request without a connection), runner (what is
begun when), handlers (the routes).
"""
