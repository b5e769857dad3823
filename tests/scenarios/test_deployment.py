"""What is shipped to run clusters: checked by its readers' own schemas, and run as they would."""

from __future__ import annotations

import copy
import json
import re
import secrets
import shutil
import signal
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from confluent_kafka import Consumer, Producer

from ottla.config import BROKER_SETTINGS
from ottla.log.directory import encode_uuid
from scenarios.containers import DATA_DIR, NAMESPACE, Container, Machine, Probe, machine, pods_of
from scenarios.polling import until
from scenarios.shell import Shell

ROOT = Path(__file__).parent.parent.parent
PACKAGING = ROOT / "packaging"
MANIFESTS = ("ottla.yaml", "brokers.yaml")
# The oldest that the manifest names, and the newest that the package knows.
VERSIONS = ("1.28", kubernetes_validate.latest_version())
PATIENCE_S = 90.0
HTTP = 9644
STARTS_MAX = 60
SHUTDOWN_S = BROKER_SETTINGS["controlled.shutdown.timeout.ms"].default / 1000

Manifest = dict[str, Any]


def manifests(name: str) -> list[Manifest]:
    return list(yaml.safe_load_all((PACKAGING / "kubernetes" / name).read_text()))


ALL = [each for name in MANIFESTS for each in manifests(name)]


def the(kind: str, name: str = "ottla") -> Manifest:
    (found,) = (each for each in ALL if (each["kind"], each["metadata"]["name"]) == (kind, name))
    return found


def pod_of(stateful_set: Manifest) -> Manifest:
    return dict(stateful_set["spec"]["template"])


STATEFUL_SETS = [each for each in ALL if each["kind"] == "StatefulSet"]


def compose() -> dict[str, Any]:
    return dict(yaml.safe_load((PACKAGING / "compose.yaml").read_text()))


# ------------------------------------------------------------------------------------- schemas


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "manifest", ALL, ids=lambda each: f"{each['kind']}-{each['metadata']['name']}"
)
def test_the_api_of_kubernetes_knows_all_that_a_manifest_says(
    manifest: Manifest, version: str
) -> None:
    kubernetes_validate.validate(manifest, version, strict=True)


def test_a_slip_in_a_manifest_is_found() -> None:
    for path, value in (
        (("spec", "replica"), 3),
        (("spec", "replicas"), "three"),
        (("spec", "template", "spec", "terminationGracePeriod"), 300),
    ):
        wrong = copy.deepcopy(the("StatefulSet"))
        place = wrong
        for name in path[:-1]:
            place = place[name]
        place[path[-1]] = value
        with pytest.raises(jsonschema.ValidationError):
            kubernetes_validate.validate(wrong, VERSIONS[-1], strict=True)


def test_compose_knows_all_that_its_file_says() -> None:
    """The package has a copy of the specification's own schema."""
    place = files("check_jsonschema") / "builtin_schemas" / "vendor" / "compose-spec.json"
    schema = json.loads(place.read_text())
    validator = jsonschema.validators.validator_for(schema)(schema)
    validator.validate(compose())
    wrong = compose()
    wrong["services"]["ottla-1"]["stop_grace"] = "5m"
    with pytest.raises(jsonschema.ValidationError):
        validator.validate(wrong)


# ------------------------------------------------------------------- what no schema can know


def test_the_manifests_fit_together() -> None:
    headless, bootstrap, budget = (
        the("Service", "ottla-nodes"),
        the("Service"),
        the("PodDisruptionBudget"),
    )
    assert headless["spec"]["clusterIP"] == "None"
    assert headless["spec"]["publishNotReadyAddresses"], (
        "nodes find each other before they are ready"
    )
    assert "publishNotReadyAddresses" not in bootstrap["spec"]
    assert budget["spec"]["maxUnavailable"] == 1
    for each in STATEFUL_SETS:
        assert each["spec"]["serviceName"] == headless["metadata"]["name"]
        pod = pod_of(each)
        labels = pod["metadata"]["labels"].items()
        selectors = (
            each["spec"]["selector"]["matchLabels"],
            headless["spec"]["selector"],
            bootstrap["spec"]["selector"],
            budget["spec"]["selector"]["matchLabels"],
        )
        assert all(selector.items() <= labels for selector in selectors)
        (apart,) = pod["spec"]["affinity"]["podAntiAffinity"][
            "requiredDuringSchedulingIgnoredDuringExecution"
        ]
        assert apart["topologyKey"] == "kubernetes.io/hostname"
        assert apart["labelSelector"]["matchLabels"].items() <= labels
        (container,) = pod["spec"]["containers"]
        ports = {port["name"] for port in container["ports"]}
        wanted = {port["targetPort"] for port in bootstrap["spec"]["ports"]}
        assert wanted <= ports
        assert [claim["metadata"]["name"] for claim in each["spec"]["volumeClaimTemplates"]] == [
            "data"
        ]
        mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        assert mounts["data"] == DATA_DIR
    ports = {port["name"] for port in pod_of(the("StatefulSet"))["spec"]["containers"][0]["ports"]}
    assert {port["targetPort"] for port in headless["spec"]["ports"]} == ports


def test_the_two_stateful_sets_differ_only_in_what_they_are() -> None:
    """Security, probes, room and the stop are the same for all nodes."""
    told = []
    for each in STATEFUL_SETS:
        pod = copy.deepcopy(pod_of(each)["spec"])
        (container,) = pod["containers"]
        container.pop("env")
        container.pop("ports")
        pod.pop("topologySpreadConstraints")
        told.append(pod)
    assert told[0] == told[1]


def seconds(text: str) -> int:
    """Of systemd and of Compose, as far as the files here write them."""
    match = re.fullmatch(r"(\d+)(s|m|)", text)
    assert match, text
    return int(match[1]) * (60 if match[2] == "m" else 1)


def test_a_stop_is_given_longer_than_others_need_to_take_over() -> None:
    unit = (PACKAGING / "ottla.service").read_text()
    (stop,) = re.findall(r"^TimeoutStopSec=(.*)", unit, re.MULTILINE)
    given = {"systemd": seconds(stop)}
    for name, service in compose()["services"].items():
        given[name] = seconds(service["stop_grace_period"])
    for each in STATEFUL_SETS:
        given[each["metadata"]["name"]] = pod_of(each)["spec"]["terminationGracePeriodSeconds"]
    assert min(given.values()) >= 3 * SHUTDOWN_S, given


# --------------------------------------------------------------------------------------- runs


def send(bootstrap: str, topic: str, numbers: range) -> None:
    failures: list[Any] = []
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "log_level": 0})
    for number in numbers:
        producer.produce(topic, str(number), on_delivery=lambda error, _: failures.append(error))
    assert producer.flush(PATIENCE_S) == 0
    assert failures == [None] * len(numbers)


def read(bootstrap: str, topic: str, count: int) -> list[int]:
    settings = {"bootstrap.servers": bootstrap, "group.id": secrets.token_hex(4), "log_level": 0}
    consumer = Consumer({**settings, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    found: list[int] = []

    def has_all() -> bool:
        message = consumer.poll(1)
        if message is not None and message.error() is None:
            found.append(int(message.value()))
        return len(found) >= count

    until(has_all, f"{count} messages", PATIENCE_S)
    consumer.close()
    return sorted(found)


def status(bootstrap: str) -> dict[str, Any]:
    done = Shell(bootstrap).run("cluster", "status", "--bootstrap", bootstrap, "--json")
    return dict(json.loads(done.stdout))


def probe_of(container: Manifest, kind: str) -> Probe:
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    asked = container[f"{kind}Probe"]["httpGet"]
    return Probe(ports[asked["port"]], asked["path"])


def pods() -> list[tuple[Container, str]]:
    """All of both manifests, each with an address."""
    config = {"ottla": {"cluster-id": encode_uuid(b"\x01" + secrets.token_bytes(15))}}
    found = [pod for each in STATEFUL_SETS for pod in pods_of(each, config)]
    return [(pod, f"127.0.0.{pod.name.rpartition('-')[2]}") for pod in found]


def test_pods_become_a_cluster_behind_one_address_and_one_comes_back_without_its_volume(
    tmp_path: Path,
) -> None:
    made = pods()
    (container,) = pod_of(the("StatefulSet"))["spec"]["containers"]
    ready, alive = (probe_of(container, kind) for kind in ("readiness", "liveness"))
    names = {}
    for pod, address in made:
        names |= {
            f"{pod.name}.ottla-nodes.{NAMESPACE}.svc": address,
            f"{pod.name}.ottla-nodes": address,
        }
    with machine(tmp_path, (9092, 9093, HTTP), names) as here:
        first = made[0]
        here.start(*first)
        until(lambda: here.probe(first[1], *alive) == 200, "it is not alive", PATIENCE_S)
        assert here.probe(first[1], *ready) == 503, "ready without a majority"
        for pod in made[1:]:
            here.start(*pod)
        for pod, address in made:
            here.await_ready(pod, address, ready)
        bootstraps = [f"{address}:{here.port(9092)}" for _, address in made]
        for position, bootstrap in enumerate(bootstraps):
            send(bootstrap, "orders", range(10 * position, 10 * position + 10))
        seen = status(bootstraps[-1])
        assert {each["node_id"]: each["role"] == "broker" for each in seen["nodes"]} == {
            1: False,
            2: False,
            3: False,
            11: True,
            12: True,
        }
        assert {each["rack"] for each in seen["nodes"]} == {
            f"host-of-{pod.name}" for pod, _ in made
        }
        lose_a_volume(here, made, seen["controller"], ready)
        assert read(bootstraps[0], "orders", 50) == list(range(50))
        for pod, _ in reversed(made):
            assert here.stop(pod.name) == 0, here.log(pod.name)


def lose_a_volume(
    here: Machine, made: list[tuple[Container, str]], controller: int, ready: Probe
) -> None:
    """Of a voter. It is there again when the new one has all that the old one had."""
    pod, address = next(each for each in made if each[0].name != f"ottla-{controller}")
    bootstrap = f"{made[-1][1]}:{here.port(9092)}"
    here.stop(pod.name, signal.SIGKILL)
    shutil.rmtree(here.data(pod.name))
    here.start(pod, address)
    # Until the node that was killed is taken for dead, there is another with its number.
    here.await_ready(pod, address, ready, starts=STARTS_MAX)

    def votes_again() -> bool:
        (row,) = (
            each for each in status(bootstrap)["nodes"] if each["address"].startswith(f"{address}:")
        )
        return bool(row["role"] == "voter" and not row["metadata_lag"] and not row["out_of_sync"])

    until(votes_again, f"{pod.name} does not vote", PATIENCE_S)


def test_a_volume_of_another_cluster_is_refused(tmp_path: Path) -> None:
    (pod, address), (other, _) = pods()[0], pods()[0]
    with machine(tmp_path, (9092, 9093, HTTP), {}) as here:
        volume = here.data(pod.name) / "data"
        volume.mkdir(parents=True)
        theirs = other.environment["CLUSTER_ID"]
        (volume / "meta.properties").write_text(
            f"version=1\ncluster.id={theirs}\nnode.id=1\ndirectory.id={encode_uuid(b'x' * 16)}\n"
        )
        here.start(pod, address)
        assert here.end_of(pod.name) == 1
        assert f"is node 1 of the cluster {theirs} already" in here.log(pod.name)


def test_the_containers_of_compose_serve_each_other_and_their_machine(tmp_path: Path) -> None:
    services = compose()["services"]
    machine_ports = {number: int(f"{number}9092") for number in (1, 2, 3)}
    names = {f"ottla-{number}": f"127.0.0.{number}" for number in (1, 2, 3)}
    for number, (name, service) in enumerate(services.items(), start=1):
        assert name == f"ottla-{number}"
        assert f"127.0.0.1:{machine_ports[number]}:{machine_ports[number]}" in service["ports"]
        assert service["volumes"] == [f"{name}:{DATA_DIR}"]
    assert compose()["volumes"].keys() == services.keys()
    with machine(tmp_path, (9092, 9093, HTTP, *machine_ports.values()), names) as here:
        containers = [
            (Container(name, each["command"], each["environment"]), names[name])
            for name, each in services.items()
        ]
        for each in containers:
            here.start(*each)
        for each in containers:
            here.await_ready(*each, Probe(HTTP, "/readyz"))
        outside = f"127.0.0.1:{here.port(machine_ports[1])}"
        inside = f"127.0.0.2:{here.port(9092)}"
        send(outside, "orders", range(20))
        assert read(inside, "orders", 20) == list(range(20))
        for bootstrap, ports in (
            (outside, {here.port(port) for port in machine_ports.values()}),
            (inside, {here.port(9092)}),
        ):
            nodes = status(bootstrap)["nodes"]
            assert {int(each["address"].rpartition(":")[2]) for each in nodes} == ports
        for name in services:
            assert here.stop(name) == 0, here.log(name)
