"""The command line as ``python -m gradientflow``, for when its console script is not on the PATH."""

from .cli import main

if __name__ == "__main__":
    main()
