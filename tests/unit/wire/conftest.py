"""The property tests run often: few examples each, and the same ones every time."""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "wire",
    max_examples=10,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("wire")
