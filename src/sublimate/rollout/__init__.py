"""The roll-out kit, `sublimate rollout`: scan, quic, metrics, rehearse (docs/rollout.md).

Reading order: rules (what will break, and what to do), sources (findings in a Python file by its
syntax tree, in others by line), scan (a whole tree), metrics (old names to new), quic (can that
server be reached by HTTP/3?), rehearse (does the previous version still start?). Each is a function
with a record as its result; the command line draws it.
"""
