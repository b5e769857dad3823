"""SASL: the login that comes before any other request on a connection (KIP-152)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.client.failures import BadSetting, LoginFailed, code_name
from ottla.client.security import PLAIN, Security
from ottla.errors import ErrorCode
from ottla.wire.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from ottla.wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse

if TYPE_CHECKING:
    from ottla.client.connection import Connection


async def log_in(connection: Connection, security: Security) -> int:
    """Returns for how many milliseconds the login holds, 0 for as long as the connection."""
    if not security.is_sasl:
        return 0
    await _shake_hands(connection, security)
    if security.mechanism == PLAIN:
        token = f"\0{security.username}\0{security.password}".encode()
        reply = await _authenticate(connection, security, token)
    else:
        reply = await _log_in_by_scram(connection, security)
    return reply.session_lifetime_ms


async def _shake_hands(connection: Connection, security: Security) -> None:
    reply = await connection.ask(
        SaslHandshakeRequest(mechanism=security.mechanism), SaslHandshakeResponse
    )
    if reply.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
        offered = ", ".join(reply.mechanisms) or "none"
        raise LoginFailed(
            f"{connection.address} does not take {security.mechanism}; its mechanisms: {offered}"
        )
    if reply.error_code:
        raise LoginFailed(
            f"{connection.address} does not begin a login: {code_name(reply.error_code)}"
        )


async def _authenticate(
    connection: Connection, security: Security, token: bytes
) -> SaslAuthenticateResponse:
    reply = await connection.ask(
        SaslAuthenticateRequest(auth_bytes=token), SaslAuthenticateResponse
    )
    if reply.error_code:
        reason = reply.error_message or code_name(reply.error_code)
        raise LoginFailed(
            f"{connection.address} refused the login of user {security.username!r} "
            f"by {security.mechanism}: {reason}"
        )
    return reply


async def _log_in_by_scram(connection: Connection, security: Security) -> SaslAuthenticateResponse:
    client, failure = _scram_client(security)
    try:
        reply = await _authenticate(connection, security, client.get_client_first().encode())
        client.set_server_first(reply.auth_bytes.decode())
        reply = await _authenticate(connection, security, client.get_client_final().encode())
        client.set_server_final(reply.auth_bytes.decode())
    except (failure, UnicodeDecodeError) as error:
        raise LoginFailed(
            f"{connection.address} did not prove by {security.mechanism} that it knows the "
            f"password of user {security.username!r}: {error}"
        ) from None
    return reply


def _scram_client(security: Security) -> tuple[Any, type[Exception]]:
    try:
        from scramp import ScramClient, ScramException
    except ImportError:
        raise BadSetting(
            f'sasl.mechanism={security.mechanism} needs scramp: pip install "ottla[spark]"'
        ) from None
    return ScramClient([security.mechanism], security.username, security.password), ScramException
