"""The manifest for Kubernetes: its fields agree, and its commands form a group with its variables."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

yaml = pytest.importorskip("yaml", reason="no PyYAML (pip install pyyaml)")

ENGINES = Path(__file__).parents[2] / "examples" / "engines"
TOKEN = "a secret of the test"


@pytest.fixture
def service() -> Any:
    return _documents()["Service"]


@pytest.fixture
def job() -> Any:
    return _documents()["Job"]


def _documents() -> dict[str, Any]:
    return {one["kind"]: one for one in yaml.safe_load_all((ENGINES / "kubernetes.yaml").read_text())}


def variables(job: Any, index: int) -> dict[str, str]:
    """What a pod's container finds in its environment."""
    known = {
        "metadata.annotations['batch.kubernetes.io/job-completion-index']": str(index),
        "skyphos-token/token": TOKEN,
    }
    found = {}
    for one in job["spec"]["template"]["spec"]["containers"][0]["env"]:
        source = one.get("valueFrom", {})
        if "fieldRef" in source:
            found[one["name"]] = known[source["fieldRef"]["fieldPath"]]
        elif "secretKeyRef" in source:
            found[one["name"]] = known["{name}/{key}".format(**source["secretKeyRef"])]
        else:
            assert isinstance(one["value"], str), f"Kubernetes takes strings only: {one}"
            found[one["name"]] = one["value"]
    return found


def test_fields_of_the_job_and_the_service_agree(service: Any, job: Any) -> None:
    spec, pod = job["spec"], job["spec"]["template"]["spec"]
    container = pod["containers"][0]
    given = variables(job, 0)
    assert (job["apiVersion"], service["apiVersion"]) == ("batch/v1", "v1")
    assert spec["completionMode"] == "Indexed"
    assert spec["completions"] == spec["parallelism"] == int(given["SKYPHOS_WORLD_SIZE"])
    assert (spec["backoffLimit"], pod["restartPolicy"]) == (0, "Never")
    # A pod's host name is JOB-INDEX; its DNS name is JOB-INDEX.SERVICE.
    name = service["metadata"]["name"]
    assert service["spec"]["clusterIP"] == "None" and service["spec"]["publishNotReadyAddresses"] is True
    assert pod["subdomain"] == name
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    host, _, port = given["SKYPHOS_RENDEZVOUS"].partition(":")
    assert host == f"{job['metadata']['name']}-0.{name}"
    assert [one["port"] for one in service["spec"]["ports"]] == [int(port)]
    assert [one["containerPort"] for one in container["ports"]] == [int(port)]
    assert container["args"][0].count("\nexec python ") == 1


def test_its_pods_form_a_group(job: Any) -> None:
    container = job["spec"]["template"]["spec"]["containers"][0]
    with socket.create_server(("127.0.0.1", 0)) as free:
        here = f"127.0.0.1:{free.getsockname()[1]}"
    script = container["args"][0].replace("/opt/skyphos/examples/engines", str(ENGINES))
    script = script.replace("exec python ", f"exec {sys.executable} ")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("SKYPHOS_", "PMI_", "SLURM_"))}
    pods = []
    try:
        for index in range(job["spec"]["completions"]):
            env = clean | variables(job, index) | {"SKYPHOS_RENDEZVOUS": here}
            command = [*container["command"], script]
            pipe = subprocess.PIPE
            pods.append(subprocess.Popen(command, env=env, stdout=pipe, stderr=pipe, text=True))
        said = [pod.communicate(timeout=60) for pod in pods]
    finally:
        for pod in pods:
            pod.kill()
    assert [pod.returncode for pod in pods] == [0] * 4, said
    assert [out for out, _ in said] == ["the sum of 4 ranks over tcp is right: 5 of 1000001 entries\n", "", "", ""]
