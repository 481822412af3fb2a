"""`python -m sublimate.engine --control-fd N`: started by the supervisor, not by people."""

from .process import main

if __name__ == "__main__":
    main()
