"""`python -m sublimate.legacy --control-fd N`: the edge with the gateway's endpoint, in place of
`python -m sublimate.edge` when the flag is given."""

from ..api.routes import ROUTES
from ..edge.process import main
from . import gateway

if __name__ == "__main__":
    main(ROUTES.with_paths(gateway.ROUTES))
