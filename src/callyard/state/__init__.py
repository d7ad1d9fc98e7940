"""Stores: where state that outlives a call is kept.

Its files:

- `memory`: the store in the memory of this process: the default of the library
- `redis`: the store in Redis: for several machines, which share it
- `redis_link`: one connection to a Redis server: many commands in flight, each sent at most once
- `redis_scripts`: the scripts of a Redis store: each changes all or nothing
- `redis_servers`: where a key is: on one Redis server, on the master that Sentinels name, or on a node of a cluster
- `redis_topics`: topics of a Redis store: sharded pub/sub
- `redis_url`: the URL of a Redis store
- `replicas`: the processes that serve one yard on one store: their records, and the mail between them
- `sqlite`: the store in an SQLite file: for one machine, shared by its processes, and still there after a restart
- `sqlite_file`: the SQLite file under a store: opens it privately, brings its schema up to date and runs transactions
- `store`: bytes under keys that outlive a call, and with some stores the process
"""

__all__: list[str] = []
