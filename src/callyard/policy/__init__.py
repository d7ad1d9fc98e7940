"""Policy: checks that a call passes before it runs. Rules decide, people approve where a rule asks, operators disable.

Its files:

- `approvals`: decisions of people about single calls, kept in the store so that they outlive the process that asked
- `budgets`: how many calls and estimated tokens a session or caller has in a period
- `cards`: what a person sees of a call before it runs, which is all of it
- `gate`: judges each call by the rules, and makes a call that needs an approval wait for the decision of a person
- `queue`: how many calls run at one time, and which waiting call is next; and the limiter that leads to it
- `rates`: how often calls may come, as token buckets in the memory of this process
- `rules`: the rules of a yard, compiled: they judge a call by its tool, caller and arguments
- `settings`: settings of what a call must pass: rules, queue, rates and budgets
- `switches`: what operators disabled, in the store and in an open yard
- `webhook`: services that take part in decisions: a webhook that receives approvals, and a decision point that judges
  calls
"""

__all__: list[str] = []
