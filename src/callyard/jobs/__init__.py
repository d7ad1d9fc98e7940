"""Jobs: runs that are stored, so that they outlive their connection and their process.

Its files:

- `job`: what it runs, for whom, its state and its result; and where they are in the store
- `run`: one job while it runs in this process: its lease, its channel, its questions and its end
- `service`: jobs in a store, for any process that can read it, and those of one yard: starts, shows, cancels and
  settles jobs
"""

__all__: list[str] = []
