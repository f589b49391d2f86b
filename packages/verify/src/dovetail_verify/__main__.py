"""Run the suite with `python -m dovetail_verify URL`."""

from dovetail_verify.command import main

if __name__ == "__main__":
    main()
