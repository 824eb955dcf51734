"""Manifests of Kubernetes: pods by Kubernetes' own schemas, jobs by the models of Kubeflow's client."""

from __future__ import annotations

from typing import Any

import pytest
from doc_blocks import ROOT

FOLDER = ROOT / "docs" / "examples" / "kubernetes"


@pytest.mark.real("kubernetes-validate", "kubeflow")
@pytest.mark.parametrize(
    ("name", "model"), [("pytorchjob", "KubeflowOrgV1PyTorchJob"), ("mpijob", "KubeflowOrgV1MPIJob")]
)
def test_manifests_are_valid(name: str, model: str) -> None:
    """The models know version 1 of an MPIJob, which has all fields of the manifest; they drop unknown fields."""
    import kubernetes_validate
    import yaml
    from kubeflow.training.api_client import ApiClient

    job = yaml.safe_load((FOLDER / f"{name}.yaml").read_text())
    client: Any = ApiClient()
    assert client.sanitize_for_serialization(client._ApiClient__deserialize(job, model)) == job
    (replicas,) = (value for key, value in job["spec"].items() if key.endswith("ReplicaSpecs"))
    for replica in replicas.values():
        pods = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": name}, "template": replica["template"]}
        kubernetes_validate.validate(pods, kubernetes_validate.latest_version(), strict=True)
        assert replica["restartPolicy"] in ("Always", "OnFailure", "Never", "ExitCode")
