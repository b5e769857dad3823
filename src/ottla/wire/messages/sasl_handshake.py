"""Agree on the mechanism of a SASL login."""

from ottla.wire.schema import INT16, STRING, Array, Message, field


class SaslHandshakeRequest(Message, api_key=17, versions="0-1", flexible="none"):
    mechanism: str = field(STRING)


class SaslHandshakeResponse(Message, api_key=17, versions="0-1", flexible="none"):
    error_code: int = field(INT16)
    mechanisms: list[str] = field(Array(STRING))
