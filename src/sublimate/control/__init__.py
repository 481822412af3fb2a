"""What the processes of `sublimate serve` say to each other: channel (messages), birth (how one
begins), child (the channel to one), run_record (who belongs to one run), stamps (when each was done
with what).

Below supervisor, edge and engine, which all import it. This file stays empty.
"""
