"""SQL and Python into frames: from names to what each flow reads."""
