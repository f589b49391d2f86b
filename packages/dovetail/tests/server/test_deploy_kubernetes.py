"""The Kubernetes manifests: rendered, validated offline, and compared with the server itself.

No cluster runs here: what a cluster does with the manifests is not tested.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from shutil import which
from typing import Any

import kubernetes_validate
import pytest
import yaml
from http_fixture import run, serving
from vllm_environment import PYTHON

from dovetail.access.key_file import read_keys
from dovetail.settings.config import Config
from dovetail.settings.sources import ENV_PREFIX, load_config

ROOT = Path(__file__).parents[4]
KUBERNETES = ROOT / "deploy" / "kubernetes"
OVERLAYS = sorted(path.parent.name for path in KUBERNETES.glob("overlays/*/kustomization.yaml"))
FLEET = "fleet"
#: The oldest version that has the `sleep` of preStop hooks enabled, and the newest known one.
VERSIONS = ("1.30", kubernetes_validate.latest_version())
CUSTOM_KINDS = {"ServiceMonitor"}  # defined by the Prometheus operator
FRONTEND, ENGINE = "dovetail", "dovetail-engine"
FLUSH_SECONDS = 10  # after a drain: two seconds for clients, then the stores
OTHER_VARIABLES = {"DOVETAIL_HOME"}

Object = dict[str, Any]


@cache
def _render(overlay: str) -> tuple[Object, ...]:
    command = [sys.executable, str(ROOT / "tools" / "render_kubernetes.py")]
    command.append(str(KUBERNETES / "overlays" / overlay))
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return tuple(yaml.safe_load_all(done.stdout))


def _find(kind: str, name: str = FRONTEND, overlay: str = FLEET) -> Object:
    found = [
        one for one in _render(overlay) if (one["kind"], one["metadata"]["name"]) == (kind, name)
    ]
    (one,) = found
    return one


def _pod(overlay: str = FLEET, name: str = FRONTEND) -> Object:
    kind = "StatefulSet" if name == ENGINE else "Deployment"
    spec: Object = _find(kind, name, overlay)["spec"]["template"]["spec"]
    return spec


def _container(overlay: str = FLEET, name: str = FRONTEND) -> Object:
    (container,) = _pod(overlay, name)["containers"]
    found: Object = container
    return found


def _flags(container: Object) -> dict[str, str]:
    arguments = [one for one in container["args"] if one != "serve"]
    return dict(zip(arguments[::2], arguments[1::2], strict=True))


def _config(overlay: str, tmp_path: Path, *, optional: bool = False) -> Config:
    """Load the settings of a frontend as its container does: file, environment and flags.

    `optional`: with the settings that are comments.
    """
    (data,) = [one["data"] for one in _render(overlay) if one["kind"] == "ConfigMap"]
    container = _container(overlay)
    flags = _flags(container)
    path = tmp_path / Path(flags.pop("--config")).name
    text = data[path.name]
    path.write_text(re.sub(r"^# (\w+ = )", r"\1", text, flags=re.MULTILINE) if optional else text)
    given = {name.removeprefix("--").replace("-", "_"): value for name, value in flags.items()}
    environment = {
        one["name"]: one.get("value", "redis://from-the-secret/0") for one in container["env"]
    }
    return load_config(given, environment, path).config


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_manifests_are_valid(overlay: str, version: str) -> None:
    objects = _render(overlay)
    names = [(one["kind"], one["metadata"]["name"]) for one in objects]
    assert len(set(names)) == len(names) > 6
    for one in objects:
        assert one["metadata"]["namespace"] == "dovetail"
        if one["kind"] not in CUSTOM_KINDS:
            kubernetes_validate.validate(one, version, strict=True)


def test_validation_can_fail() -> None:
    wrong = {**_find("Service"), "spec": {"prots": []}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, VERSIONS[-1], strict=True)


def _sorted(value: Any) -> Any:
    """Sort lists whose elements have names, whose order kustomize changes when it merges them."""
    if isinstance(value, dict):
        return {key: _sorted(one) for key, one in value.items()}
    if isinstance(value, list):
        parts = [_sorted(one) for one in value]
        named = all(isinstance(one, dict) and "name" in one for one in parts)
        return sorted(parts, key=lambda one: str(one["name"])) if named else parts
    return value


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_renderer_agrees_with_kubectl(overlay: str) -> None:
    kubectl = which("kubectl")
    if kubectl is None:
        pytest.skip("kubectl is not installed")
    command = [kubectl, "kustomize", str(KUBERNETES / "overlays" / overlay)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    expected = {
        (one["kind"], one["metadata"]["name"]): one for one in yaml.safe_load_all(done.stdout)
    }
    rendered = {(one["kind"], one["metadata"]["name"]): one for one in _render(overlay)}
    assert _sorted(rendered) == _sorted(expected)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_settings_flags_and_variables_exist(overlay: str, tmp_path: Path) -> None:
    config = _config(overlay, tmp_path)  # fails on an unknown name or value
    assert config.engine == "vllm"
    assert config.model_alias
    for variable in _container(overlay)["env"]:
        name = variable["name"]
        setting = name.removeprefix(ENV_PREFIX).lower()
        assert name in OTHER_VARIABLES or setting in Config.__dataclass_fields__, name


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_ports_agree(overlay: str, tmp_path: Path) -> None:
    container = _container(overlay)
    (port,) = container["ports"]
    assert port["containerPort"] == int(_flags(container)["--http-port"])
    probes = [container[name]["httpGet"]["port"] for name in _probes(container)]
    (service_port,) = _find("Service", overlay=overlay)["spec"]["ports"]
    (ingress,) = _find("NetworkPolicy", overlay=overlay)["spec"]["ingress"]
    allowed = [one["port"] for one in ingress["ports"]]
    assert {*probes, service_port["targetPort"], *allowed} == {port["name"]}


def _probes(container: Object) -> list[str]:
    return [name for name in container if name.endswith("Probe")]


def test_probed_and_scraped_paths_exist_and_need_no_key(tmp_path: Path) -> None:
    container = _container()
    paths = {name: container[name]["httpGet"]["path"] for name in _probes(container)}
    assert paths["readinessProbe"] == "/ready"  # 503 during a drain
    assert paths["livenessProbe"] == "/live"  # 200 during a drain
    (endpoint,) = _find("ServiceMonitor")["spec"]["endpoints"]
    assert endpoint["port"] == _find("Service")["spec"]["ports"][0]["name"]
    assert not _config(FLEET, tmp_path).metrics_need_key

    async def scene() -> None:
        async with serving() as stage:
            for path in (*paths.values(), endpoint["path"]):
                route = stage.app.routes.find(path, "GET")
                assert route is not None
                assert not route.needs_key
                assert (await stage.request("GET", path)).status == 200
            stage.app.draining.started = True
            assert (await stage.request("GET", paths["readinessProbe"])).status == 503
            assert (await stage.request("GET", paths["livenessProbe"])).status == 200
            stage.app.draining.started = False

    run(scene)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_grace_period_covers_the_drain(overlay: str, tmp_path: Path) -> None:
    config, pod = _config(overlay, tmp_path), _pod(overlay)
    delay = _container(overlay)["lifecycle"]["preStop"]["sleep"]["seconds"]
    readiness = _container(overlay)["readinessProbe"]
    assert delay >= readiness["periodSeconds"]
    needed = delay + config.drain_timeout + FLUSH_SECONDS
    assert pod["terminationGracePeriodSeconds"] >= needed
    startup = _container(overlay)["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] > config.engine_wait


def test_metrics_of_the_autoscaler_exist() -> None:
    metrics = _find("HorizontalPodAutoscaler")["spec"]["metrics"]
    scaled = [one["pods"]["metric"]["name"] for one in metrics if one["type"] == "Pods"]
    adapter = yaml.safe_load((KUBERNETES / "monitoring" / "prometheus-adapter.yaml").read_text())
    rules = adapter["rules"]["custom"]
    assert scaled == [rule["name"]["as"] for rule in rules]
    queried = {name for rule in rules for name in re.findall(r"\bdovetail_\w+", str(rule))}

    async def scene() -> None:
        async with serving() as stage:
            text = (await stage.request("GET", "/metrics")).body.decode()
            shapes = dict(re.findall(r"^# TYPE (\S+) (\S+)", text, re.MULTILINE))
            for name in {*scaled, *queried}:
                assert shapes[name] == "gauge"

    run(scene)
    target = _find("HorizontalPodAutoscaler")["spec"]["scaleTargetRef"]
    assert _find(target["kind"], target["name"])["apiVersion"] == target["apiVersion"]


def test_autoscaler_target_is_below_the_limit_of_a_frontend(tmp_path: Path) -> None:
    (pods,) = [
        one["pods"]
        for one in _find("HorizontalPodAutoscaler")["spec"]["metrics"]
        if one["type"] == "Pods"
    ]
    target = int(pods["target"]["averageValue"])
    assert target < _config(FLEET, tmp_path).max_concurrent_requests


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_selectors_match_pods(overlay: str) -> None:
    objects = _render(overlay)
    templates = [one["spec"]["template"] for one in objects if "template" in one.get("spec", {})]
    labels = [template["metadata"]["labels"] for template in templates]
    services = [one["metadata"]["labels"] for one in objects if one["kind"] == "Service"]
    found = list(_selectors(objects))
    assert len(found) >= 8
    for kind, selector in found:
        candidates = services if kind == "ServiceMonitor" else labels
        assert any(selector.items() <= one.items() for one in candidates), (kind, selector)


def _selectors(objects: tuple[Object, ...]) -> Iterator[tuple[str, dict[str, str]]]:
    for one in objects:
        spec = one.get("spec", {})
        if one["kind"] == "Service":
            yield one["kind"], spec["selector"]
        for name in ("selector", "podSelector"):
            if "matchLabels" in spec.get(name, {}):
                yield one["kind"], spec[name]["matchLabels"]
        for rule in (*spec.get("ingress", ()), *spec.get("egress", ())):
            for peer in (*rule.get("from", ()), *rule.get("to", ())):
                if "podSelector" in peer:
                    yield one["kind"], peer["podSelector"]["matchLabels"]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_files_of_the_settings_are_mounted(overlay: str, tmp_path: Path) -> None:
    pod, container = _pod(overlay), _container(overlay)
    volumes = {one["name"]: one for one in pod["volumes"]}
    mounts = {one["mountPath"]: volumes[one["name"]] for one in container["volumeMounts"]}
    assert len(mounts) == len(volumes)
    config_maps = {
        one["metadata"]["name"] for one in _render(overlay) if one["kind"] == "ConfigMap"
    }
    assert mounts["/etc/dovetail/config"]["configMap"]["name"] in config_maps
    secret = mounts["/etc/dovetail/secrets"]["secret"]
    example = yaml.safe_load((KUBERNETES / "secret.example.yaml").read_text())
    assert secret["secretName"] == example["metadata"]["name"]
    mounted = {
        f"/etc/dovetail/secrets/{item['path']}": example["stringData"][item["key"]]
        for item in secret["items"]
    }
    config = _config(overlay, tmp_path)
    assert {str(config.api_key_file), str(config.seal_key_file)} == set(mounted)
    (tmp_path / "keys").write_text(mounted[str(config.api_key_file)])
    assert [key.tenant for key in read_keys(tmp_path / "keys")] == ["team-red"]
    writable = {"/var/lib/dovetail", "/tmp"}
    assert {path for path, volume in mounts.items() if "emptyDir" in volume} == writable
    store = next(one for one in container["env"] if one["name"] == "DOVETAIL_STORE")
    if "valueFrom" in store:
        assert store["valueFrom"]["secretKeyRef"]["key"] in example["stringData"]
    else:  # several frontends need a store that they share
        assert _find("Deployment", overlay=overlay)["spec"]["replicas"] == 1


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_engine_is_a_replica(overlay: str, tmp_path: Path) -> None:
    engines = _find("StatefulSet", ENGINE, overlay)["spec"]
    service = _find("Service", engines["serviceName"], overlay)["spec"]
    assert service["clusterIP"] == "None"
    assert service["publishNotReadyAddresses"] is True  # `engine_wait` needs an address
    (port,) = [one["port"] for one in service["ports"] if one["name"] == "http"]
    config = _config(overlay, tmp_path)
    assert config.engine_dns == (f"http://{engines['serviceName']}:{port}",)
    assert not config.engine_url
    optional = _config(overlay, tmp_path, optional=True)
    container = _container(overlay, ENGINE)
    opened = {one["name"]: one["containerPort"] for one in container["ports"]}
    arguments = container["args"]
    assert arguments[arguments.index("--port") + 1] == str(opened["http"])
    assert arguments[arguments.index("--model") + 1] == config.model
    assert arguments[arguments.index("--block-size") + 1] == str(config.kv_block_size)
    events = yaml.safe_load(arguments[arguments.index("--kv-events-config") + 1])
    assert events["endpoint"] == f"tcp://*:{opened['kv-events']}"
    assert events["replay_endpoint"] == f"tcp://*:{opened['kv-replay']}"
    assert optional.kv_events == (events["endpoint"],)  # `*` stands for the host of each replica
    assert optional.kv_events_replay == (events["replay_endpoint"],)
    assert {one["port"] for one in service["ports"]} == set(opened.values())
    egress = _find("NetworkPolicy", FRONTEND, overlay)["spec"]["egress"]
    (to_engines,) = [rule for rule in egress if "to" in rule]
    assert {one["port"] for one in to_engines["ports"]} == set(opened.values())


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_only_one_pod_is_evicted_at_a_time(overlay: str) -> None:
    for name in (FRONTEND, ENGINE):
        budget = _find("PodDisruptionBudget", name, overlay)["spec"]
        assert budget["maxUnavailable"] == 1
        assert budget["selector"]["matchLabels"] == {"app.kubernetes.io/name": name}


@pytest.mark.fleet
@pytest.mark.timeout(300)
@pytest.mark.skipif(PYTHON not in os.environ, reason=f"{PYTHON} names no interpreter with vLLM")
def test_vllm_accepts_the_arguments_of_the_engine() -> None:
    """Parses the arguments with vLLM's own parser; nothing is started."""
    program = """
import sys
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser
found = make_arg_parser(FlexibleArgumentParser()).parse_args(sys.argv[1:])
assert found.kv_events_config.enable_kv_cache_events, found.kv_events_config
"""
    command = [os.environ[PYTHON], "-c", program, *_container(FLEET, ENGINE)["args"]]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_frontends_have_minimal_privileges(overlay: str) -> None:
    pod, security = _pod(overlay), _container(overlay)["securityContext"]
    containerfile = (ROOT / "deploy" / "Containerfile").read_text()
    assert f"USER {pod['securityContext']['runAsUser']}\n" in containerfile
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["automountServiceAccountToken"] is False
    assert security["readOnlyRootFilesystem"] is True
    assert security["allowPrivilegeEscalation"] is False
    assert security["capabilities"] == {"drop": ["ALL"]}


def test_unsupported_fields_are_rejected(tmp_path: Path) -> None:
    (tmp_path / "kustomization.yaml").write_text("namePrefix: x-\n")
    command = [sys.executable, str(ROOT / "tools" / "render_kubernetes.py"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "namePrefix" in done.stderr
