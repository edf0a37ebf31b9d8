"""A training that prints its last argument, a password, and quotes it in its error."""

import sys


def run() -> None:
    print("connecting with", sys.argv[-1], flush=True)
    raise ConnectionError(f"cannot log in with {sys.argv[-1]}")


if __name__ == "__main__":
    run()
