"""`python -m dovetail`: the same as the `dovetail` command."""

from dovetail.cli.main import main

if __name__ == "__main__":
    main()
