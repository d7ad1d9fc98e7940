"""The worker for Google's Agent Development Kit: what its adapter calls, without the SDK's own work around it."""

from tools import ARGUMENTS, BASE
from worker import Bench, work

from callyard import Yard
from callyard.inject.google_adk import google_adk_toolset
from callyard.monitor import Ring


async def _inject(bench: Bench, _: int) -> None:
    async with Yard(tools=BASE, sinks=[Ring()]) as yard:
        add = next(tool for tool in await google_adk_toolset(yard).get_tools() if tool.name == "add")
        await bench(
            "Google ADK", lambda: add.run_async(args=ARGUMENTS, tool_context=None), lambda answer: answer["data"] == 3
        )


if __name__ == "__main__":
    work({"inject": _inject})
