"""The tripwire for code given to eval tools: it stops accidents, and a sandbox or an approval stops attackers.

Its files:

- `guard`: the check of code before an eval tool runs it in this process or in the application that the tool drives
- `javascript`: the rules for JavaScript code of an eval tool: blocked words and constructs outside of its strings and
  comments
- `python`: the rules for Python code of an eval tool: blocked names, attributes, modules and texts in its syntax tree
- `sql`: the rules for SQL code of an eval tool: blocked words and constructs outside of its strings and comments
"""

__all__: list[str] = []
