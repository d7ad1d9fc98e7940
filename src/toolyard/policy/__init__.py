"""What a call must pass besides the checks of the dispatcher: rules and approvals, queue, rates and budgets."""
