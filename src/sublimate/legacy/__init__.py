"""The layer that Sublimate removes, to compare with: `serve --legacy-layer` (docs/legacy-layer.md).

A client asks the gateway for an address, is sent there by a 302, and asks again; behind both stands
a scheduler of its own process, reached through a broker, which has the answer made by an executor
and passes it back piece by piece.

Reading order: records (what the hops say to each other), broker (Redis, and our connection to it),
gateway (the negotiate endpoint, in the edge), model_address (where a 302 points), scheduler,
executor (its connections to the server that computes), layer (starts all of it). Nothing here is
imported without the flag.
"""
