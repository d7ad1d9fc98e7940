"""Jobs: runs that are stored, so that they outlive their connection and their process.

Its files:

- `docket_queue`: the queue of jobs in Redis, by pydocket
- `job`: what it runs, for whom, its state and its result; and where they are in the store
- `queue`: the queue that brings jobs to workers
- `run`: one job while it runs in this process: its lease, its channel, its questions and its end
- `service`: the jobs of one yard: starts, shows, cancels and settles them, or has workers run them
- `stored`: the jobs in a store, for any process that can read it
- `worker`: runs the jobs that the queue delivers to this process
"""

__all__: list[str] = []
