"""Files that clients upload once and name in their messages.

store (SQLite and a folder, on a thread of its own), upload (a body that goes to the disk as it
comes), handlers (the routes).
"""
