"""How values are written as JSON, to topics and to files.

Nulls are written (as Kafka Connect's JSON converter does): a reader sees every field of the schema.
Times are ISO 8601 in UTC with all their microseconds, bytes are base64, decimals are numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

# In UTC whatever the session's zone is.
TIMES: Final[Mapping[str, str]] = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "timeZone": "UTC",
}
JSON: Final[Mapping[str, str]] = {**TIMES, "ignoreNullFields": "false"}
