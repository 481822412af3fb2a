"""`python -m sublimate.legacy --control-fd N`: the edge with the gateway's endpoint, in place of
`python -m sublimate.edge` when the flag is given."""

from ..api.routes import SHAPES, SINKS, TABLE, begin
from ..edge.process import main
from ..edge.routes import Routes
from .gateway import ROUTES

if __name__ == "__main__":
    main(Routes({**TABLE, **ROUTES}, SHAPES, begin, SINKS))
