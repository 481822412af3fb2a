"""What the processes of `sublimate serve` say to each other: channel (messages), child (start).

Below supervisor, edge and engine, which all import it. This file stays empty.
"""
