"""The planner: a goal becomes a plan, by a manager that is a model, and a plan becomes what agents are told."""
