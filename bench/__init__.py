"""Ottla's benchmark: figures, their history and their pictures. `python -m bench --help`."""
