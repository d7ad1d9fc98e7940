"""Stores: where state that outlives a call is kept.

Its files:

- `memory`: the store in the memory of this process: the default of the library
- `sqlite`: the store in an SQLite file: for one machine, shared by its processes, and still there after a restart
- `sqlite_file`: the SQLite file under a store: opens it privately, brings its schema up to date and runs transactions
- `store`: bytes under keys that outlive a call, and with some stores the process
"""

__all__: list[str] = []
