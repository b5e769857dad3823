"""The IO shell: connections, handlers, partitions and the runtime of the coordinators."""
