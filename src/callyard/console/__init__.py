"""The console: pages in a browser that show a served yard and steer it. It is mounted beside the MCP endpoint.

Its files:

- `access`: who may use the console: people who read it, and people who may act in it
- `app`: the console as mounts of the HTTP server: finds the page, checks who asks, and renders or streams it
- `form`: the fields that a person fills in to call a tool or to answer a question
- `page`: the base of the console's pages: the request, the answer, and the rendering of templates, times and charts
- `runs`: calls that people make in the console, with their results
"""

from callyard.console.app import Console

__all__ = ["Console"]
