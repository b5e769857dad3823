"""Ports that nobody else gets before the server does."""

from __future__ import annotations

import socket

from ottla.testing import ports


def test_ports_are_free_and_none_that_the_system_gives_to_clients() -> None:
    found = ports.free_ports(50)
    assert len(set(found)) == 50
    with socket.socket() as client:
        client.bind(("127.0.0.1", 0))
        given = client.getsockname()[1]
    assert max(found) < ports._first_ephemeral() <= given
    for port in found:
        socket.create_server(("127.0.0.1", port)).close()


def test_a_port_that_is_taken_is_passed_over() -> None:
    (taken,) = ports.free_ports(1)
    with socket.create_server(("127.0.0.1", taken)):
        assert taken not in ports.free_ports(50)
