"""The contract as data: specs, schemas, envelopes, errors, profiles, limits."""

__all__: list[str] = []
