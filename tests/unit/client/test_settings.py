"""The Java client's settings: what is taken, and the one line about what is not."""

from __future__ import annotations

import pickle
import ssl

import pytest

from ottla.client.failures import BadSetting
from ottla.client.jaas import parse_login
from ottla.client.security import Security
from ottla.client.settings import ClientSettings, join_address, parse_bootstrap, split_address

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"


def settings(**options: str) -> ClientSettings:
    named = {name.replace("_", "."): value for name, value in options.items()}
    return ClientSettings.from_kafka({"bootstrap.servers": "a:1", **named})


def refused(**options: str) -> str:
    with pytest.raises(BadSetting) as caught:
        settings(**options)
    line = str(caught.value)
    assert "\n" not in line
    return line


def test_nothing_but_the_address_gives_the_defaults():
    assert settings() == ClientSettings(("a:1",))


def test_settings_are_the_same_after_a_pickle_and_as_a_key():
    one = settings(
        security_protocol="sasl_plaintext",
        sasl_mechanism="PLAIN",
        sasl_jaas_config=f'{PLAIN} required username="u" password="p";',
    )
    again = pickle.loads(pickle.dumps(one))
    assert {one: 1}[again] == 1


def test_times_are_given_in_milliseconds():
    found = settings(request_timeout_ms="1500", retry_backoff_ms="50")
    assert (found.request_timeout_s, found.retry_backoff_s) == (1.5, 0.05)
    assert "request.timeout.ms=soon" in refused(request_timeout_ms="soon")
    assert "retry.backoff.ms=0" in refused(retry_backoff_ms="0")


def test_several_brokers_are_separated_by_commas():
    assert parse_bootstrap("a:1, SSL://b.example:22 ,[::1]:333,") == (
        "a:1",
        "b.example:22",
        "[::1]:333",
    )
    assert split_address("[::1]:333") == ("::1", 333)
    assert join_address("::1", 333) == "[::1]:333"
    assert join_address("a", 1) == "a:1"


@pytest.mark.parametrize(
    "text", ["", " , ", "a", "a:", ":1", "a:x", "a:0", "a:65536", "::1:9", "a:²"]
)
def test_an_address_without_host_or_port_is_refused(text):
    assert "bootstrap.servers" in refused(bootstrap_servers=text)


def test_a_missing_address_is_refused():
    with pytest.raises(BadSetting, match=r"bootstrap\.servers is missing"):
        ClientSettings.from_kafka({})


# -------------------------------------------------------------------------------------- SASL


def login(**options: str) -> Security:
    return settings(security_protocol="SASL_PLAINTEXT", **options).security


def test_plain_and_scram_logins_are_read_from_jaas():
    jaas = f'{PLAIN} required username="alice" password="secret";'
    found = login(sasl_mechanism="PLAIN", sasl_jaas_config=jaas)
    assert (found.mechanism, found.username, found.password) == ("PLAIN", "alice", "secret")
    jaas = f"{SCRAM} required\n  username=alice password='se cret' ;"
    found = login(sasl_mechanism="scram-sha-512", sasl_jaas_config=jaas)
    assert (found.mechanism, found.username, found.password) == (
        "SCRAM-SHA-512",
        "alice",
        "se cret",
    )


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (r'"a\"b"', 'a"b'),
        (r'"a\\b"', r"a\b"),
        (r'"a\tb"', "a\tb"),
        (r'"a\101b"', "aAb"),
        (r'"a\8b"', "a8b"),
        ('"a;b=c //d"', "a;b=c //d"),
        ("'a\"b'", 'a"b'),
        ("plain-word_1.x$", "plain-word_1.x$"),
        ('""', ""),
        ("/* a note */ x // and another\n", "x"),
        ('"päß"', "päß"),
    ],
)
def test_a_password_is_quoted_as_java_reads_it(written, meant):
    text = f'{PLAIN} required username="u" password={written};'
    assert parse_login(text, "PLAIN").password == meant


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "does not begin with"),
        (f'{PLAIN} required username="u" password="p"', "does not end with a semicolon"),
        (f'{PLAIN} required username="u";', "no password"),
        (f'{PLAIN} required password="p";', "no username"),
        (f'{PLAIN} username="u" password="p";', "'username' stands where `required` should"),
        (f'{PLAIN} required username="u" password;', "no value for 'password'"),
        (f'{PLAIN} required username= password="p";', "no value for"),
        (f'{PLAIN} required username="u" password="p;', "cannot be read at character"),
        (f"{PLAIN} required username=u password=12;", "cannot be read at character"),
        (f"{PLAIN} required username=u password=p; {PLAIN} required;", "more than one"),
        (f'{SCRAM} required username="u" password="p";', "needs org.apache"),
        ('com.example.Mine required username="u" password="p";', "names com.example.Mine"),
    ],
)
def test_jaas_that_cannot_be_meant_is_refused_without_showing_the_password(text, line):
    with pytest.raises(BadSetting) as caught:
        parse_login(text, "PLAIN")
    assert line in str(caught.value)
    assert '"p' not in str(caught.value)


def test_delegation_tokens_are_refused():
    text = f'{SCRAM} required username="u" password="p" tokenauth="true";'
    with pytest.raises(BadSetting, match="delegation tokens"):
        parse_login(text, "SCRAM-SHA-256")


@pytest.mark.parametrize("mechanism", ["GSSAPI", "OAUTHBEARER"])
def test_other_mechanisms_are_refused_by_name(mechanism):
    line = refused(security_protocol="SASL_SSL", sasl_mechanism=mechanism)
    assert f"sasl.mechanism={mechanism} is not supported" in line
    assert "PLAIN, SCRAM-SHA-256, SCRAM-SHA-512" in line


def test_a_login_without_jaas_is_refused():
    assert "sasl.jaas.config is missing" in refused(
        security_protocol="SASL_PLAINTEXT", sasl_mechanism="PLAIN"
    )


def test_secrets_are_not_shown():
    found = login(
        sasl_mechanism="PLAIN", sasl_jaas_config=f'{PLAIN} required username="u" password="tops";'
    )
    assert "tops" not in repr(found)


# --------------------------------------------------------------------------------------- TLS


def test_pem_files_and_texts_are_taken():
    found = settings(
        security_protocol="SSL", ssl_truststore_type="PEM", ssl_truststore_location="/ca.pem"
    ).security
    assert (found.is_tls, found.is_sasl, found.ca_path) == (True, False, "/ca.pem")
    found = settings(
        security_protocol="SSL", ssl_truststore_type="PEM", ssl_truststore_certificates="TEXT"
    ).security
    assert found.ca_pem == "TEXT"
    assert found.checks_hostname
    without_name = {"ssl.endpoint.identification.algorithm": ""}
    assert not settings(security_protocol="SSL", **without_name).security.checks_hostname


@pytest.mark.parametrize(
    ("options", "command"),
    [
        ({"ssl_truststore_location": "/x/trust.jks"}, "keytool -list -rfc -keystore /x/trust.jks"),
        (
            {"ssl_truststore_location": "/x/t", "ssl_truststore_type": "jks"},
            "keytool -list -rfc -keystore /x/t > ca.pem",
        ),
        ({"ssl_truststore_location": "/x/t.p12"}, "openssl pkcs12 -in /x/t.p12 -nokeys"),
        ({"ssl_keystore_location": "/x/k.p12"}, "openssl pkcs12 -in /x/k.p12 -out client.pem"),
        ({"ssl_keystore_location": "/x/k.jks"}, "-srckeystore /x/k.jks"),
    ],
)
def test_stores_of_java_are_refused_with_the_command_that_converts_them(options, command):
    line = refused(security_protocol="SSL", **options)
    assert f"`{command}" in line or f"{command} " in line


def test_a_key_without_its_certificate_is_refused():
    line = refused(security_protocol="SSL", ssl_keystore_type="PEM", ssl_keystore_key="K")
    assert "go together" in line


def test_an_unknown_setting_of_security_is_never_passed_over():
    assert "ssl.engine.factory.class" in refused(ssl_engine_factory_class="x")
    assert "ssl.cipher.suites" in refused(ssl_cipher_suites="x")
    assert "security.protocol=TLS" in refused(security_protocol="TLS")


def test_the_versions_of_tls_can_be_chosen():
    only = settings(security_protocol="SSL", ssl_enabled_protocols="TLSv1.3").security
    context = only.tls_context()
    assert context is not None
    assert context.minimum_version == ssl.TLSVersion.TLSv1_3
    usual = Security("SSL").tls_context()
    assert usual is not None
    assert usual.minimum_version == ssl.TLSVersion.TLSv1_2
    assert usual.maximum_version == ssl.TLSVersion.TLSv1_3
    line = refused(security_protocol="SSL", ssl_enabled_protocols="TLSv1.1")
    assert "ssl.enabled.protocols=TLSv1.1" in line


def test_a_file_that_is_missing_or_no_pem_is_named(tmp_path):
    options = {"security_protocol": "SSL", "ssl_truststore_type": "PEM"}
    found = settings(ssl_truststore_location=str(tmp_path / "none.pem"), **options).security
    with pytest.raises(BadSetting, match=r"none\.pem: No such file"):
        found.tls_context()
    path = tmp_path / "store.bin"
    path.write_bytes(b"\xfe\xed\xfe\xed")
    found = settings(ssl_truststore_location=str(path), **options).security
    with pytest.raises(BadSetting, match="keytool -list -rfc"):
        found.tls_context()


def test_the_names_of_certificates_are_checked_unless_told_otherwise():
    context = Security("SSL").tls_context()
    assert context is not None
    assert context.check_hostname
    assert context.verify_mode == ssl.CERT_REQUIRED
    careless = Security("SSL", checks_hostname=False).tls_context()
    assert careless is not None
    assert not careless.check_hostname
    assert careless.verify_mode == ssl.CERT_REQUIRED
    assert Security().tls_context() is None
