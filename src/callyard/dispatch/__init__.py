"""The funnel: from a request to its envelope and record.

Its files:

- `admission`: what a call must pass before its handler runs
- `arguments`: arguments as a person approves them: JSON under the schema's names, with defaults filled in
- `call`: a call as its handler sees it, and what surrounds it: who calls, by which channel, as which request
- `deadlines`: timeouts, and the deadlines that stop calls which take too long
- `dispatcher`: the one funnel: every call, from every way in, passes `Dispatcher.dispatch`
- `execution`: runs admitted calls under their deadline
- `outcome`: the way from what a handler returned or raised to the envelope and the record of its call
- `progress`: progress of one call: throttled, only ever growing, the last one always delivered
- `questions`: what runs wait for, of the client or of a person
- `registry`: the registry of a yard: its published tools, resources and prompts, who subscribed to them, and version
  numbers
- `replies`: what a run in a task of its own answers, to whoever asked for it last
- `resource`: resources and prompts: a spec, the tool that reads or renders it, and its completions
- `results`: large results in a store, their handles, and references to them among the arguments of later calls
- `run`: a call in flight as the dispatcher sees it, with its task, its interruptions and what it must give back
- `sessions`: state that outlives a call, with an id that callers pass as an argument
- `stacks`: where a call waits: the lines of its code, in its task or its thread
- `table`: a table of published entries of one kind by key, and an index that finds similar keys
- `threads`: worker threads for handlers that block
- `tool`: a spec, a check of its arguments and a handler; and the arguments as JSON, checked and repaired
- `tracing`: what the funnel needs of a tracer
"""

__all__: list[str] = []
