"""The tools that the deployment serves: replace them with yours."""

from callyard import Yard, tool


@tool(operation="query")
def greet(name: str) -> str:
    """Greet somebody."""
    return f"Hello, {name}."


@tool(operation="query", job="always")
def count_words(text: str) -> int:
    """Count the words of a text, as a job that a worker may run."""
    return len(text.split())


yard = Yard("tools", tools=[greet, count_words])
