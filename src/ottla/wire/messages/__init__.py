"""The declarations: one module per API, one class per message for all its versions."""
