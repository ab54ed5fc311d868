"""`python -m penstock`: the command `penstock`, for where it is not on the path."""

from penstock.cli import main

if __name__ == "__main__":
    main()
