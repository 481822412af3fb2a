"""`python -m sublimate`: the same as the `sublimate` command."""

from .cli.main import main

if __name__ == "__main__":
    main()
