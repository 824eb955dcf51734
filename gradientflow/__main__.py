"""``python -m gradientflow``: the command line, where its console script is not on the PATH."""

from .cli import main

if __name__ == "__main__":
    main()
