"""The command `ottla`: one file per noun, imported only when it is asked for."""
