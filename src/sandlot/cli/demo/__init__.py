"""``sandlot demo``: an agent's analysis, end to end; ``analyst`` is the agent."""
