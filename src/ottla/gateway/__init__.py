"""What the broker says over HTTP: health, readiness, metrics."""
