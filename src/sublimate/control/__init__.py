"""What the processes of `sublimate serve` say to each other: channel (messages), child (start),
run_record (who belongs to one run).

Below supervisor, edge and engine, which all import it. This file stays empty.
"""
