"""Packs: installed packages that ship a provider, and the pack `system`, which comes with Callyard.

A pack that nobody names is not imported.

Its files:

- `documents`: the guides and the manifest as resources, and `llms.txt`
- `loading`: finds installed packs by the entry point group `callyard.packs`, and imports the one that is asked for
- `pack`: a pack as data: what an installed package offers, and what its provider is given for one yard
- `pack_set`: the packs of a yard: named by code and by settings, opened with it, and changed while it is open
- `provider`: the provider of a named pack: opens what the pack makes, and checks what it publishes
- `survey`: which packs are installed and named, and what is missing, without opening any
- `system`: tools that describe the yard to an agent
"""

__all__: list[str] = []
