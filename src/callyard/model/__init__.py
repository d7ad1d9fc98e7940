"""The contract as data: specs, schemas, envelopes, errors, profiles, limits.

Its files:

- `apps`: MCP Apps as data: tools that name a page, and its address below the name of an upstream
- `coercion`: repair of arguments: finds what a model probably meant, by the schema alone
- `content`: images, sounds, resources and texts that a tool returns besides data
- `elicitation`: requests to the client while a call runs: elicitation, sampling and roots
- `envelope`: the envelope that every call answers with, and the JSON encoding of results
- `errors`: the closed set of error codes, and `ToolError`, the exception that carries one
- `limits`: times, sizes and counts that the dispatcher enforces, each a setting with a default
- `names`: which of the known names a mistyped one probably meant
- `profile`: which tools exist for a caller, and how they are listed
- `schema`: checks schemas, validates values and looks up the part of a schema for one field
- `schema_cost`: the cost of a JSON Schema: how many subschemas a validator applies to one place of a value
- `signature`: a tool on one line, written as a function, and the types of its parameters in the same notation
- `simple_schema`: simple schemas, which are checked without the validator, so that a yard of simple tools starts
  sooner
- `spec`: tools, resources and prompts as data, and the checks that a spec must pass to be published
- `switch`: what an operator disabled, until when and why
- `uri_template`: matches a URI against a template and returns the values of its variables
"""

__all__: list[str] = []
