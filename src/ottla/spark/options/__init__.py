"""The options of format(\"ottla\"): their names, their texts, and what they ask for."""
