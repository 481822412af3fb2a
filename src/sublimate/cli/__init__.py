"""The command line: entry (what is first), main (the commands), options (flags of the settings),
and one file per command.

Heavy libraries are imported inside the commands, so that `serve` starts its processes first.
"""
