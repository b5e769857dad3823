"""A real Kafka with every kind of door: plaintext, logins, TLS, both, and TLS on both sides.

Keys are made anew for each node. All listeners are on 127.0.0.1, which the certificate names.
"""

from __future__ import annotations

import base64
import os
import signal
import socket
import subprocess
import time
import uuid
from contextlib import closing
from pathlib import Path

from ottla.testing.ports import free_ports

DOORS = ("PLAINTEXT", "CONTROLLER", "LOGIN", "SECURE", "MUTUAL")
USER, PASSWORD = "alice", 'alice"s \\secret, =1'
START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 60.0
TOOL_TIMEOUT_S = 120.0
JAVA_OPTIONS = (
    "-Xmx400m",
    "-Xms64m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)
LOGIN_LIFETIME_MS = 4000

PROPERTIES = r"""process.roles=broker,controller
node.id=1
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
listeners={listeners}
advertised.listeners={advertised}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,\
    LOGIN:SASL_PLAINTEXT,SECURE:SASL_SSL,MUTUAL:SSL
controller.quorum.bootstrap.servers=127.0.0.1:{controller}
log.dirs={home}/data
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
log.cleaner.backoff.ms=100
listener.name.login.sasl.enabled.mechanisms=PLAIN
listener.name.login.plain.connections.max.reauth.ms={lifetime}
listener.name.login.plain.sasl.jaas.config=\
    org.apache.kafka.common.security.plain.PlainLoginModule required user_{user}="{password}";
listener.name.secure.sasl.enabled.mechanisms=SCRAM-SHA-256,SCRAM-SHA-512
listener.name.secure.scram-sha-256.sasl.jaas.config=\
    org.apache.kafka.common.security.scram.ScramLoginModule required;
listener.name.secure.scram-sha-512.sasl.jaas.config=\
    org.apache.kafka.common.security.scram.ScramLoginModule required;
ssl.keystore.type=PEM
ssl.keystore.location={home}/server-store.pem
ssl.truststore.type=PEM
ssl.truststore.location={home}/ca.pem
listener.name.mutual.ssl.client.auth=required
"""


class SecuredKafka:
    """One node of Kafka that is broker and controller, with a small heap."""

    def __init__(self, home: Path, jars: Path) -> None:
        self.home = home
        self._jars = jars
        self._process: subprocess.Popen[bytes] | None = None
        self._ports = dict(zip(DOORS, free_ports(len(DOORS)), strict=True))

    def address(self, door: str) -> str:
        return f"127.0.0.1:{self._ports[door]}"

    def start(self) -> None:
        make_keys(self.home)
        self._format()
        with (self.home / "kafka.log").open("ab") as log:
            self._process = subprocess.Popen(
                [*self._java(), "kafka.Kafka", str(self.home / "server.properties")],
                cwd=self.home,
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + START_TIMEOUT_S
        for port in self._ports.values():
            self._await_port(port, deadline)

    def close(self) -> None:
        if self._process is None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_TIMEOUT_S)
        finally:
            self._process.kill()
            self._process.wait()

    def _java(self) -> list[str]:
        return ["java", *JAVA_OPTIONS, "-cp", f"{self._jars}/*"]

    def _format(self) -> None:
        listeners = ",".join(f"{door}://127.0.0.1:{port}" for door, port in self._ports.items())
        # In a properties file a backslash stands for itself when doubled, and so it does in JAAS.
        password = PASSWORD.replace("\\", "\\\\").replace('"', '\\"').replace("\\", "\\\\")
        text = PROPERTIES.format(
            listeners=listeners,
            advertised=",".join(part for part in listeners.split(",") if "CONTROLLER" not in part),
            controller=self._ports["CONTROLLER"],
            home=self.home,
            lifetime=LOGIN_LIFETIME_MS,
            user=USER,
            password=password,
        )
        config = self.home / "server.properties"
        config.write_text(text)
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        command = [*self._java(), "kafka.tools.StorageTool", "format", "--standalone"]
        command += ["-t", f"A{cluster_id[1:]}", "-c", str(config)]
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
            command += ["--add-scram", f"{mechanism}=[name={USER},password=scram-secret]"]
        run(command, self.home)

    def _await_port(self, port: int, deadline: float) -> None:
        while True:
            with closing(socket.socket()) as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    return
            log = (self.home / "kafka.log").read_text(errors="replace")[-3000:]
            assert self._process is not None
            assert self._process.poll() is None, log
            assert time.monotonic() < deadline, log
            time.sleep(0.05)


def make_keys(home: Path) -> None:
    """An authority, and what it signed: one certificate for the node, one for a client."""
    openssl = ["openssl", "req", "-newkey", "rsa:2048", "-nodes"]
    run([*openssl, "-x509", "-days", "2", "-subj", "/CN=test authority", "-keyout", "ca.key",
         "-out", "ca.pem"], home)  # fmt: skip
    for name, names in (("server", "IP:127.0.0.1"), ("client", "DNS:client")):
        run([*openssl, "-subj", f"/CN={name}", "-addext", f"subjectAltName={names}", "-keyout",
             f"{name}.key", "-out", f"{name}.csr"], home)  # fmt: skip
        run(["openssl", "x509", "-req", "-days", "2", "-in", f"{name}.csr", "-CA", "ca.pem",
             "-CAkey", "ca.key", "-CAcreateserial", "-copy_extensions", "copy", "-out",
             f"{name}.pem"], home)  # fmt: skip
        store = (home / f"{name}.key").read_text() + (home / f"{name}.pem").read_text()
        (home / f"{name}-store.pem").write_text(store)


def run(command: list[str], home: Path, text: str = "") -> str:
    done = subprocess.run(
        command,
        cwd=home,
        input=text,
        capture_output=True,
        text=True,
        timeout=TOOL_TIMEOUT_S,
        env={**os.environ, "LC_ALL": "C"},
    )
    assert done.returncode == 0, f"{command[:3]}: {done.stdout[-1000:]}{done.stderr[-1000:]}"
    return done.stdout
