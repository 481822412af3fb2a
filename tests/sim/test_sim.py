""
    "Short runs of the simulator: the real loop, a virtual clock, a model that hashes its context."
    ""
