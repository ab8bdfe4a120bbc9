"""The command `pellucid`, also as `python -m pellucid`."""

from .cli import main

__all__ = ["main"]

if __name__ == "__main__":
    main()
