"""Where rows go: one file for each kind, behind `contract.py`."""
