"""Keys and values of a format (JSON, Avro) become typed columns."""
