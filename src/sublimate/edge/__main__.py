"""`python -m sublimate.edge --control-fd N`, started by the supervisor."""

from .process import main

if __name__ == "__main__":
    main()
