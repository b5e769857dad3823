"""Where rows come from: one file for each kind, behind `contract.py`."""
