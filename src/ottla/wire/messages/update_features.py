"""Raise the levels of features that hold for the whole cluster (KIP-584, KIP-1022)."""

from ottla.wire.schema import BOOL, INT8, INT16, INT32, STRING, Array, Message, Struct, field


class FeatureUpdateKey(Struct):
    feature: str = field(STRING)
    max_version_level: int = field(INT16)
    allow_downgrade: bool = field(BOOL, "0")
    upgrade_type: int = field(INT8, "1+", default=1)


class UpdateFeaturesRequest(Message, api_key=57, versions="0-2", flexible="0+"):
    timeout_ms: int = field(INT32, default=60_000)
    feature_updates: list[FeatureUpdateKey] = field(Array(FeatureUpdateKey))
    validate_only: bool = field(BOOL, "1+")


class UpdatableFeatureResult(Struct):
    feature: str = field(STRING)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+")


class UpdateFeaturesResponse(Message, api_key=57, versions="0-2", flexible="0+"):
    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16)
    error_message: str | None = field(STRING, nullable="0+")
    results: list[UpdatableFeatureResult] = field(Array(UpdatableFeatureResult), "0-1")
