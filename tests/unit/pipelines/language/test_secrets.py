"""What must never be printed, is not."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ottla.pipelines.language.pipeline_file import read_pipeline
from ottla.pipelines.language.problems import BadPipeline
from ottla.pipelines.language.secrets import is_secret_name, redact, secrets_in
from unit.pipelines.pipeline_files import problems, read, shop_with, write


@pytest.mark.parametrize(
    "name",
    ["password", "PGPASSWORD", "sasl.jaas.config", "ssl.key.password", "API_TOKEN", "apiKey",
     "spark.hadoop.fs.s3a.secret.key", "client_secret", "ssl.keystore.key", "GOOGLE_CREDENTIALS",
     "private-key", "DB_PASSWD", "sslpassphrase"],
)  # fmt: skip
def test_names_of_secrets(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize("name", ["user", "key", "topic", "KEYBOARD", "shop", "pass_rate"])
def test_other_names(name: str) -> None:
    assert not is_secret_name(name)


def test_a_secret_is_hidden_wherever_it_stands() -> None:
    assert redact("cannot log in with 'hunter22'", {"hunter22"}) == "cannot log in with '***'"
    assert redact("xhunter22x hunter22hunter22", {"hunter22"}) == "x***x ******"


def test_the_longer_of_two_secrets_is_hidden_first() -> None:
    assert redact("hunter22-and-more", {"hunter22", "hunter22-and-more"}) == "***"


def test_a_secret_that_is_too_short_hides_no_words() -> None:
    assert redact("a line with 'a' and \"a\" in it", {"a"}) == "a line with '***' and \"***\" in it"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("jdbc:postgresql://h/db?user=u&password=abc&x=1", "jdbc:postgresql://h/db?user=u&password="
         "***&x=1"),
        ("https://me:abc@host/x", "https://me:***@host/x"),
        ('PlainLoginModule required username="u" password="a b c";', "PlainLoginModule required "
         'username="u" password=***;'),
        ("the key password:abc is unknown", "the key password:*** is unknown"),
        ("PGPASSWORD = abc; next", "PGPASSWORD = ***; next"),
        ("sinks.j.password is a list; wanted: a password", "sinks.j.password is a list; wanted: a "
         "password"),
    ],
)  # fmt: skip
def test_what_looks_like_a_password_is_hidden_though_nobody_called_it_one(
    text: str, expected: str
) -> None:
    assert redact(text, ()) == expected


def test_parts_of_a_secret_are_secrets() -> None:
    jaas = 'org.x.PlainLoginModule required username="u" password="hunter22";'
    assert set(secrets_in(jaas)) == {jaas, "hunter22"}
    pem = "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG9w0B\n-----END PRIVATE KEY-----\n"
    assert "MIIEvQIBADANBgkqhkiG9w0B" in set(secrets_in(pem))
    assert set(secrets_in("true")) == set()


def test_secrets_come_from_keys_variables_urls_and_overrides(tmp_path: Path) -> None:
    text = shop_with(
        sources="""\
        sources:
          a: {jdbc: "jdbc:postgresql://h/db?password=in-the-url", table: t, password: in-the-key,
              options: {sslpassword: in-an-option}}
        """,
        kafka='kafka: {sasl.jaas.config: "${J}", client.id: "${MY_TOKEN}"}\n',
        spark="spark: {spark.hadoop.fs.s3a.secret.key: in-spark}\n",
    )
    pipeline = read(
        tmp_path,
        text,
        {"J": "in-a-variable", "MY_TOKEN": "in-a-token"},
        {"kafka.ssl.key.password": "in-an-override"},
    )
    assert pipeline.secrets == {
        "in-the-url", "in-the-key", "in-an-option", "in-a-variable", "in-a-token", "in-spark",
        "in-an-override",
    }  # fmt: skip


def test_columns_of_sql_are_no_secrets(tmp_path: Path) -> None:
    text = shop_with(views="views: {v: SELECT * FROM orders WHERE token = status}\n")
    assert read(tmp_path, text).secrets == frozenset()


def test_a_value_is_hidden_before_it_is_cut_short(tmp_path: Path) -> None:
    secret = "s3cret-" * 30
    told = problems(tmp_path, shop_with(trigger='trigger: "x ${MY_TOKEN}"\n'), {"MY_TOKEN": secret})
    assert told == ["5:10: trigger is 'x ***'; wanted: a duration such as 10 seconds or 2 minutes"]


# Where somebody might put a secret, rightly or wrongly; %s is the secret.
PLACES = [
    "sources:\n  a: {{jdbc: 'jdbc:postgresql://h/db', table: t, password: '{0}', tabel: x}}\n",
    "sources:\n  a: {{jdbc: 'postgresql://h/db?password={0}', table: t}}\n",
    "sources:\n  a: {{jdbc: 'jdbc:postgresql://u:{0}@h/db', tabel: t}}\n",
    "sources:\n  a: {{topic: t, format: bytes, max_rows_per_batch: '${{PW_SECRET}}'}}\n",
    "sources:\n  a: {{topic: '${{PW_SECRET}} ', format: bytes, start: x}}\n",
    "sources:\n  a: {{topic: t, format: '${{PW_SECRET}}'}}\n",
    "sources:\n  a: {{topic: t, format: json, schema: 'id ${{PW_SECRET}}'}}\n",
    "sources:\n  a: {{topic: t, format: avro, schema: '${{PW_SECRET}}'}}\n",
    "sources:\n  a: {{files: x, format: json, password: '{0}'}}\n",
    "sources:\n  a: {{rate: '${{PW_SECRET}}', start: '${{GONE_TOKEN:-{0}}}'}}\n",
    "sources:\n  ${{PW_SECRET}}: {{rate: 1}}\n",
    "kafka: {{sasl.password: '{0}', sasl.passwort: '{0}'}}\n",
    "kafka: {{sasl.jaas.config: 'x required password=\"{0}\";', x: 1}}\n",
    "kafka:\n  sasl.password: *{0}\n",
    "kafka:\n  sasl.password: !{0}\n",
    "kafka:\n  sasl.password: !{0}!x y\n",
    "kafka:\n  sasl.password: &{0} [x\n",
    "kafka:\n  sasl.password:{0}\n",
    "kafka: {{sasl.password:{0}, sasl.password:{0}}}\n",
    "kafka:\n  sasl.password: '{0}\n",
    "kafka:\n  sasl.password: @{0}\n",
    "kafka:\n  sasl.password: {0}: {0}\n",
    "kafka: {{password: [{{a: '{0}'}}]}}\n",
    "spark: {{spark.token: {{a: '{0}'}}}}\n",
    "views:\n  v: {{file: '${{PW_SECRET}}'}}\n",
    "views:\n  v: {{python: '${{PW_SECRET}}'}}\n",
    "sinks:\n  s: {{from: '${{PW_SECRET}}', topic: t}}\n",
    "tests:\n  t: {{given: {{a: x}}, expect: '${{PW_SECRET}}'}}\n",
    "version: '${{PW_SECRET}}'\n",
    "{0}: '${{PW_SECRET}}'\n",
]  # fmt: skip

# No part of any of our words; among YAML's own signs there are some that matter to it.
SECRETS = st.text(alphabet="QZXJ0123456789#%&=?+~^", min_size=6, max_size=40).filter(
    lambda text: text[0] in "QZXJ"
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@example(secret="QZXJQZXJ", places=[PLACES[-1], PLACES[-1]])
@given(secret=SECRETS, places=st.lists(st.sampled_from(PLACES), min_size=1, max_size=3))
def test_no_secret_is_in_any_line(secret: str, places: list[str], tmp_path: Path) -> None:
    text = "name: [wrong]\n" + "".join(place.format(secret) for place in places)
    environment = {"PW_SECRET": secret}
    with pytest.raises(BadPipeline) as caught:
        read_pipeline(
            write(tmp_path, text),
            environment=environment,
            overrides={"kafka.sasl.password": secret, "trigger": "${PW_SECRET}"},
        )
    assert secret not in str(caught.value)
