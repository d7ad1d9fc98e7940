"""A program that opens a yard with a browser, writes its pids, and waits until it is killed: FOLDER."""

import asyncio
import json
import os
import sys
from pathlib import Path

from callyard_browser.processes import children, users_of
from page_server import open_browser


async def main() -> None:
    """Open a browser, and say which processes there are."""
    folder = Path(sys.argv[1])
    async with open_browser(folder) as browser:
        await browser.launch()
        pids = {"driver": sorted(children(os.getpid())), "browser": sorted(users_of(folder))}
        sys.stdout.write(json.dumps(pids) + "\n")
        sys.stdout.flush()
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main())
