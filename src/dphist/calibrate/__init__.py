"""From a budget and a contract to a plan: the least threshold, or the least noise, that can be proved."""
