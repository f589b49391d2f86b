"""Render a kustomization of deploy/kubernetes without kustomize, for checks in CI.

    python tools/render_kubernetes.py deploy/kubernetes/overlays/fleet

It supports only what these files use: `resources`, `namespace`, `images`, `configMapGenerator` with
files, and `patches` with a path to a strategic merge patch. Anything else is an error. Use
`kubectl apply -k` to deploy; tests compare both where kubectl is installed.
"""

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import yaml

Object = dict[str, Any]

#: The keys by which kustomize merges the elements of lists. Other lists are replaced.
MERGE_KEYS = {
    "containers": "name",
    "env": "name",
    "ports": "containerPort",
    "volumes": "name",
    "volumeMounts": "mountPath",
}
FIELDS = {"apiVersion", "kind", "namespace", "resources", "images", "patches", "configMapGenerator"}
GENERATOR_FIELDS = {"name", "files"}
_HASH_LETTERS = str.maketrans("013ae", "ghkmt")
_HASH_LENGTH = 10


class UnsupportedError(Exception):
    """A kustomization uses a field that this program does not support."""


def render(folder: Path) -> list[Object]:
    """Return the objects of a kustomization."""
    objects = _build(folder)
    names = {}
    for one in objects:
        if one["kind"] == "ConfigMap":
            name = one["metadata"]["name"]
            names[name] = one["metadata"]["name"] = f"{name}-{hash_config_map(one)}"
    for one in objects:
        _rename_config_maps(one, names)
    return objects


def _build(folder: Path) -> list[Object]:
    """Return the objects of a kustomization, with generated names that have no hash yet."""
    text = (folder / "kustomization.yaml").read_text("utf-8")
    settings = yaml.safe_load(text)
    _require_known(set(settings) - FIELDS, folder)
    objects: list[Object] = []
    for name in settings.get("resources", []):
        path = (folder / name).resolve()
        objects += _build(path) if path.is_dir() else read_objects(path)
    for generator in settings.get("configMapGenerator", []):
        _require_known(set(generator) - GENERATOR_FIELDS, folder)
        _generate_config_map(objects, generator, folder)
    for patch in settings.get("patches", []):
        _require_known(set(patch) - {"path"}, folder)
        for change in read_objects(folder / patch["path"]):
            _merge(_find(objects, change), change)
    for image in settings.get("images", []):
        _set_image(objects, image)
    if "namespace" in settings:
        for one in objects:
            one["metadata"]["namespace"] = settings["namespace"]
    return objects


def read_objects(path: Path) -> list[Object]:
    """Return the objects of a file."""
    return [one for one in yaml.safe_load_all(path.read_text("utf-8")) if one is not None]


def hash_config_map(one: Object) -> str:
    """Return the suffix that kustomize gives a generated ConfigMap."""
    content = {"data": one["data"], "kind": "ConfigMap", "name": ""}  # without its name
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=False, sort_keys=True)
    for letter in "<>&":  # as Go encodes JSON
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    digest = hashlib.sha256(text.encode()).hexdigest()
    return digest[:_HASH_LENGTH].translate(_HASH_LETTERS)


def _generate_config_map(objects: list[Object], generator: Object, folder: Path) -> None:
    name = generator["name"]
    data = {Path(file).name: (folder / file).read_text("utf-8") for file in generator["files"]}
    made = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}
    objects.append(made)


def _find(objects: list[Object], wanted: Object) -> Object:
    for one in objects:
        if (one["kind"], one["metadata"]["name"]) == (wanted["kind"], wanted["metadata"]["name"]):
            return one
    raise UnsupportedError(f"no {wanted['kind']} {wanted['metadata']['name']} to change")


def _merge(target: Object, change: Object) -> None:
    for key, value in change.items():
        if value is None:
            target.pop(key, None)
        elif isinstance(value, dict) and isinstance(target.get(key), dict):
            _merge(target[key], value)
        elif isinstance(value, list) and key in MERGE_KEYS and key in target:
            _merge_lists(target[key], value, MERGE_KEYS[key])
        else:
            target[key] = value


def _merge_lists(target: list[Object], changes: list[Object], key: str) -> None:
    for change in changes:
        found = next((one for one in target if one[key] == change[key]), None)
        if found is None:
            target.append(change)
        else:
            _merge(found, change)


def _set_image(objects: list[Object], image: Object) -> None:
    for container in _containers(objects):
        name, _, tag = container["image"].partition(":")
        if name == image["name"]:
            tag = image.get("newTag", tag)
            name = image.get("newName", name)
            container["image"] = f"{name}:{tag}" if tag else name


def _containers(objects: list[Object]) -> list[Object]:
    specs = (one.get("spec", {}).get("template", {}).get("spec", {}) for one in objects)
    return [container for spec in specs for container in spec.get("containers", [])]


def _rename_config_maps(one: Object, names: dict[str, str]) -> None:
    spec = one.get("spec", {}).get("template", {}).get("spec", {})
    for volume in spec.get("volumes", []):
        if (found := volume.get("configMap")) is not None:
            found["name"] = names.get(found["name"], found["name"])


def _require_known(unknown: set[str], folder: Path) -> None:
    if unknown:
        raise UnsupportedError(f"{folder}: {', '.join(sorted(unknown))}")


if __name__ == "__main__":
    print(yaml.safe_dump_all(render(Path(sys.argv[1])), sort_keys=False), end="")
