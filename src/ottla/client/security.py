"""How a connection is encrypted and authenticated: TLS and SASL, by the Java client's names."""

from __future__ import annotations

import os
import ssl
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from ottla.client.failures import BadSetting
from ottla.client.jaas import Login, parse_login

PLAIN: Final = "PLAIN"
MECHANISMS: Final = (PLAIN, "SCRAM-SHA-256", "SCRAM-SHA-512")
PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_PEM_MARK: Final = "-----BEGIN "
_JKS_SUFFIXES: Final = (".jks", ".keystore", ".truststore")
_PKCS12_SUFFIXES: Final = (".p12", ".pfx", ".pkcs12")


@dataclass(frozen=True)
class Security:
    """Texts in PEM are given as they are or as the path of a file on the machine that connects."""

    protocol: str = "PLAINTEXT"
    mechanism: str = ""
    username: str = ""
    password: str = field(default="", repr=False)
    ca_pem: str | None = field(default=None, repr=False)
    ca_path: str | None = None
    certificate_pem: str | None = field(default=None, repr=False)
    key_pem: str | None = field(default=None, repr=False)
    keystore_path: str | None = None
    key_password: str | None = field(default=None, repr=False)
    checks_hostname: bool = True
    tls_versions: tuple[str, ...] = ("TLSV1.2", "TLSV1.3")

    @property
    def is_tls(self) -> bool:
        return self.protocol in ("SSL", "SASL_SSL")

    @property
    def is_sasl(self) -> bool:
        return self.protocol in ("SASL_PLAINTEXT", "SASL_SSL")

    @classmethod
    def from_kafka(cls, options: Mapping[str, str]) -> Security:
        """`security.protocol`, `sasl.*` and `ssl.*`; what cannot be honoured is refused."""
        protocol = options.get("security.protocol", "PLAINTEXT").upper()
        if protocol not in PROTOCOLS:
            raise BadSetting(f"security.protocol={protocol}: it is one of {', '.join(PROTOCOLS)}")
        known = _check_names(options)
        login = _login(known) if protocol.startswith("SASL") else Login("", "", "")
        if not protocol.endswith("SSL"):
            return cls(protocol, login.mechanism, login.username, login.password)
        ca_pem, ca_path = _truststore(known)
        certificate, key, keystore_path = _keystore(known)
        algorithm = known.get("ssl.endpoint.identification.algorithm", "https").strip().lower()
        if algorithm not in ("", "https"):
            raise BadSetting(
                f"ssl.endpoint.identification.algorithm={algorithm}: it is https, or empty for none"
            )
        return cls(
            protocol,
            login.mechanism,
            login.username,
            login.password,
            ca_pem=ca_pem,
            ca_path=ca_path,
            certificate_pem=certificate,
            key_pem=key,
            keystore_path=keystore_path,
            key_password=known.get("ssl.key.password"),
            checks_hostname=algorithm == "https",
            tls_versions=_tls_versions(known.get("ssl.enabled.protocols", "TLSv1.2,TLSv1.3")),
        )

    def tls_context(self) -> ssl.SSLContext | None:
        """Reads the files; None without TLS."""
        if not self.is_tls:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = self.checks_hostname
        versions = sorted(_TLS_VERSIONS[name] for name in self.tls_versions)
        context.minimum_version, context.maximum_version = versions[0], versions[-1]
        try:
            self._trust(context)
            self._show_certificate(context)
        except ssl.SSLError as error:
            raise BadSetting(f"a PEM file or text cannot be used: {error}") from None
        return context

    def _trust(self, context: ssl.SSLContext) -> None:
        if self.ca_pem is None and self.ca_path is None:
            context.load_default_certs()
            return
        text = self.ca_pem
        if text is None:
            assert self.ca_path is not None
            text = _read_pem("ssl.truststore.location", self.ca_path)
        context.load_verify_locations(cadata=text)

    def _show_certificate(self, context: ssl.SSLContext) -> None:
        if self.keystore_path is not None:
            _read_pem("ssl.keystore.location", self.keystore_path)
            context.load_cert_chain(self.keystore_path, password=self._key_password)
        elif self.certificate_pem is not None and self.key_pem is not None:
            # OpenSSL reads a private key from a file only.
            with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
                file.write(f"{self.key_pem}\n{self.certificate_pem}\n")
                file.flush()
                context.load_cert_chain(file.name, password=self._key_password)

    def _key_password(self) -> str:
        if self.key_password is None:
            raise BadSetting("the private key is encrypted: give ssl.key.password")
        return self.key_password


_NAMES: Final = frozenset(
    {
        "security.protocol",
        "sasl.mechanism",
        "sasl.jaas.config",
        "sasl.username",
        "sasl.password",
        "ssl.truststore.type",
        "ssl.truststore.location",
        "ssl.truststore.password",
        "ssl.truststore.certificates",
        "ssl.keystore.type",
        "ssl.keystore.location",
        "ssl.keystore.password",
        "ssl.keystore.key",
        "ssl.keystore.certificate.chain",
        "ssl.key.password",
        "ssl.enabled.protocols",
        "ssl.endpoint.identification.algorithm",
    }
)
# They choose among Java's implementations, or are for mechanisms that are not supported.
_WITHOUT_EFFECT: Final = frozenset(
    {
        "ssl.protocol",
        "ssl.keymanager.algorithm",
        "ssl.trustmanager.algorithm",
        "ssl.secure.random.implementation",
        "sasl.kerberos.service.name",
    }
)
_TLS_VERSIONS: Final = {
    "TLSV1.2": ssl.TLSVersion.TLSv1_2,
    "TLSV1.3": ssl.TLSVersion.TLSv1_3,
}


def _check_names(options: Mapping[str, str]) -> dict[str, str]:
    """A setting of security that is silently left out would not be what its author believes."""
    for name in options:
        if name.startswith(("ssl.", "sasl.", "security.")) and name not in _NAMES | _WITHOUT_EFFECT:
            raise BadSetting(f"{name} is not supported by this client")
    return {name: value for name, value in options.items() if name in _NAMES}


def _login(options: Mapping[str, str]) -> Login:
    mechanism = options.get("sasl.mechanism", "GSSAPI").upper()
    if mechanism not in MECHANISMS:
        raise BadSetting(
            f"sasl.mechanism={mechanism} is not supported: it is one of {', '.join(MECHANISMS)}"
        )
    jaas = options.get("sasl.jaas.config")
    if jaas is not None:
        return parse_login(jaas, mechanism)
    if "sasl.username" in options and "sasl.password" in options:
        return Login(mechanism, options["sasl.username"], options["sasl.password"])
    raise BadSetting("sasl.jaas.config is missing: it has the user name and the password")


def _tls_versions(text: str) -> tuple[str, ...]:
    names = tuple(name.strip().upper() for name in text.split(",") if name.strip())
    if not names or any(name not in _TLS_VERSIONS for name in names):
        raise BadSetting(f"ssl.enabled.protocols={text}: it has TLSv1.2, TLSv1.3 or both")
    return names


def _truststore(options: Mapping[str, str]) -> tuple[str | None, str | None]:
    """The authorities as text, or the path of their file."""
    location = options.get("ssl.truststore.location")
    kind = _store_type(options.get("ssl.truststore.type"), location)
    if kind != "PEM":
        command = (
            f"openssl pkcs12 -in {location} -nokeys -out ca.pem"
            if kind == "PKCS12"
            else f"keytool -list -rfc -keystore {location} > ca.pem"
        )
        raise BadSetting(
            f"ssl.truststore.location: {kind} is not read here; `{command}` converts it, "
            "then set ssl.truststore.type=PEM and the new location"
        )
    return options.get("ssl.truststore.certificates"), location


def _keystore(options: Mapping[str, str]) -> tuple[str | None, str | None, str | None]:
    """Certificate and key as texts, or the path of the file with both."""
    location = options.get("ssl.keystore.location")
    kind = _store_type(options.get("ssl.keystore.type"), location)
    if kind != "PEM":
        command = f"openssl pkcs12 -in {location} -out client.pem"
        if kind == "JKS":
            command = (
                f"keytool -importkeystore -srckeystore {location} -destkeystore client.p12 "
                "-deststoretype PKCS12 && openssl pkcs12 -in client.p12 -out client.pem"
            )
        raise BadSetting(
            f"ssl.keystore.location: {kind} is not read here; `{command}` converts it, "
            "then set ssl.keystore.type=PEM and the new location"
        )
    certificate = options.get("ssl.keystore.certificate.chain")
    key = options.get("ssl.keystore.key")
    if (certificate is None) != (key is None):
        raise BadSetting("ssl.keystore.key and ssl.keystore.certificate.chain go together")
    return certificate, key, location


def _store_type(given: str | None, location: str | None) -> str:
    """Java takes JKS when nothing is said; here the file's name is asked first."""
    if given is not None:
        return given.upper()
    name = (location or "").lower()
    if name.endswith(_JKS_SUFFIXES):
        return "JKS"
    return "PKCS12" if name.endswith(_PKCS12_SUFFIXES) else "PEM"


def _read_pem(setting: str, path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            text = file.read()
    except OSError as error:
        reason = error.strerror or os.strerror(error.errno or 0)
        raise BadSetting(f"{setting}: {path}: {reason}") from None
    if _PEM_MARK not in text:
        raise BadSetting(
            f"{setting}: {path} is not PEM; `keytool -list -rfc -keystore {path}` shows the "
            "certificates of a JKS or PKCS12 store as PEM"
        )
    return text
