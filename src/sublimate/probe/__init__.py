"""What this machine offers, and which backends run on it.

nvml (what an NVIDIA driver tells), source (the one seam through which facts are read: this machine,
or a recording of one), machine (facts as typed figures), backends (a verdict for each, with reason
and remedy), bandwidth (measured), report (all of it, and whether the model fits). None of it needs
the extension: what only that can tell is left out where it cannot be loaded.

defines: FACTS_VARIABLE
"""

FACTS_VARIABLE = "SUBLIMATE_PROBE_FACTS"
"""Names a recording to read in place of this machine, for tests."""
