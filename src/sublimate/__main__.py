"""`python -m sublimate`: the same as the `sublimate` command."""

from .cli.entry import main

if __name__ == "__main__":
    main()
