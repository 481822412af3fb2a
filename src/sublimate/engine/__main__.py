"""`python -m sublimate.engine --control-fd N`: started by the supervisor, not by people."""

from ..control.birth import tie_to_parent
from ..control.stamps import stamp

if __name__ == "__main__":
    tie_to_parent()  # before the imports: one that was begun ahead may be of no use by then
    stamp("entered")
    from .process import main

    stamp("imported")
    main()
