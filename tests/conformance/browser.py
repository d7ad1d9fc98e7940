"""A browser without a person: it opens an address and goes wherever it is sent."""

import sys
from urllib.request import urlopen

if __name__ == "__main__":
    urlopen(sys.argv[1], timeout=60).close()  # noqa: S310 - it goes where the tests send it
