"""`python -m sublimate.edge --control-fd N`, started by the supervisor. Here, and only here, the
edge meets the surfaces that it serves."""

import gc

from ..control.birth import tie_to_parent
from ..control.stamps import stamp

if __name__ == "__main__":
    tie_to_parent()  # before the imports: one that was begun ahead may be of no use by then
    stamp("entered")
    gc.disable()  # up to process.py: imports leave no garbage, and collections walk all of them
    from ..api.routes import ROUTES
    from .process import main

    stamp("imported")
    main(ROUTES)
