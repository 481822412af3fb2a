"""`python -m sublimate.edge --control-fd N`, started by the supervisor. Here, and only here, the
edge meets the surfaces that it serves."""

from ..api.routes import ROUTES
from .process import main

if __name__ == "__main__":
    main(ROUTES)
