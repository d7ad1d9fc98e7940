"""Publishes one document in a yard and searches it; prints CPU seconds and memory, for tests and people.

python measure.py DOCUMENT STATE_DIR [QUERY]
"""

import asyncio
import json
import resource
import sys
import time
from pathlib import Path

from callyard import Yard
from callyard.providers.openapi.provider import make_api
from callyard.providers.openapi.settings import ApiSettings
from callyard.providers.upstream.pins import Pins

__all__: list[str] = []


async def main(document: str, state: Path, query: str) -> dict[str, object]:
    """Return what it took until the tools were there, and until the first search was answered."""
    begun = time.process_time()
    settings = ApiSettings(document=document, base_url="https://api.example.com/")
    api = make_api("api", settings, state=state, pins=Pins(state / "callyard.lock", state=state))
    async with Yard(providers=[api], state_dir=str(state)) as yard:
        await api.wait_ready()
        published = time.process_time()
        answer = await yard.call("search_tools", {"query": query, "limit": 5})
        searched = time.process_time()
        return {
            "state": api.status().state,
            "tools": api.status().tools,
            "quarantined": len(yard.registry.unavailable(yard.profile_of(None))),
            "listed": len(yard.registry.list(yard.profile_of(None))),
            "imports_s": round(begun, 3),
            "published_s": round(published - begun, 3),
            "searched_s": round(searched - begun, 3),
            "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
            "first": [hit["signature"].partition("(")[0] for hit in answer.data["hits"]] if answer.success else [],
        }


if __name__ == "__main__":
    queries = sys.argv[3:] or ["create an issue"]
    sys.stdout.write(json.dumps(asyncio.run(main(sys.argv[1], Path(sys.argv[2]), queries[0]))) + "\n")
