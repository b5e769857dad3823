"""From the file to the model: YAML, variables, keys, rules. No Spark."""
