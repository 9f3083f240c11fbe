#!/usr/bin/env python3
"""Derives definitions.json.gz from the wheel of the PyPI package kubernetes-validate.

    pip download --no-deps kubernetes-validate==1.36.0
    ./derive.py kubernetes_validate-1.36.0-py3-none-any.whl

See README.md for what is kept, undone and added.
"""

import gzip
import json
import pathlib
import sys
import zipfile

SOURCE = "kubernetes_validate/kubernetes-json-schema/v1.36.0-local/_definitions.json"
HERE = pathlib.Path(__file__).parent

# Group and version of the kinds that are kept, with all that they refer to.
KEPT = {
    ("", "v1"),
    ("admissionregistration.k8s.io", "v1"),
    ("apiextensions.k8s.io", "v1"),
    ("apps", "v1"),
    ("authentication.k8s.io", "v1"),
    ("authorization.k8s.io", "v1"),
    ("autoscaling", "v1"),
    ("autoscaling", "v2"),
    ("batch", "v1"),
    ("coordination.k8s.io", "v1"),
    ("discovery.k8s.io", "v1"),
    ("events.k8s.io", "v1"),
    ("networking.k8s.io", "v1"),
    ("node.k8s.io", "v1"),
    ("policy", "v1"),
    ("rbac.authorization.k8s.io", "v1"),
    ("scheduling.k8s.io", "v1"),
    ("storage.k8s.io", "v1"),
}

GVK = "x-kubernetes-group-version-kind"


def schema(node):
    """One schema without prose, with its types as OpenAPI 3.0 writes them."""
    out = {}
    for key, value in node.items():
        if key == "description":
            continue
        if key == "type":
            # The package writes an optional field's type as [T, "null"].
            out[key] = value if isinstance(value, str) else next(t for t in value if t != "null")
        elif key == "$ref":
            out[key] = value.replace("#/$defs/", "#/components/schemas/")
        elif key == "properties":
            out[key] = {name: schema(field) for name, field in value.items()}
            # The package pins apiVersion and kind with enums that Kubernetes' own definitions do not have.
            for name in ("apiVersion", "kind"):
                out[key].get(name, {}).pop("enum", None)
        elif key in ("items", "additionalProperties", "not"):
            out[key] = schema(value) if isinstance(value, dict) else value
        elif key in ("oneOf", "anyOf", "allOf"):
            out[key] = [schema(branch) for branch in value]
        elif key == GVK:
            kept = [gvk for gvk in value if (gvk["group"], gvk["version"]) in KEPT]
            if kept:
                out[key] = kept
        else:
            out[key] = value
    return out


def references(node):
    """Names of the definitions that a schema refers to."""
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"].rpartition("/")[2]
        for value in node.values():
            yield from references(value)
    elif isinstance(node, list):
        for value in node:
            yield from references(value)


def main(wheel):
    with zipfile.ZipFile(wheel) as archive:
        source = json.loads(archive.read(SOURCE))["$defs"]
    every = {name: schema(node) for name, node in source.items()}
    # Lists and the options of deletion carry a GVK too; a list is described by the kind that it lists.
    wanted = [name for name, node in every.items() if GVK in node and not name.endswith("List")]
    kept = {}
    while wanted:
        name = wanted.pop()
        if name not in kept:
            kept[name] = every[name]
            wanted.extend(references(every[name]))
    for path, default in json.loads((HERE / "defaults.json").read_text()).items():
        name, _, field = path.rpartition(":")
        matches = [full for full in kept if full.endswith("." + name)]
        if len(matches) != 1:
            sys.exit(f"{path}: {len(matches)} definitions match")
        kept[matches[0]]["properties"][field]["default"] = default
    text = json.dumps(kept, separators=(",", ":"), sort_keys=True).encode()
    (HERE / "definitions.json.gz").write_bytes(gzip.compress(text, 9, mtime=0))
    print(f"{len(kept)} definitions, {len(text)} bytes")


if __name__ == "__main__":
    main(*sys.argv[1:])
