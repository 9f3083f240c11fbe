"""Kinds and keys of objects."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Optional, Union

Object = dict[str, Any]
"""A Kubernetes object, decoded from JSON."""


class TypeMeta(NamedTuple):
    """A kind of object. As text it is `v1/ConfigMap` or `apps/v1/Deployment`."""

    api_version: str
    kind: str

    def __str__(self) -> str:
        return f"{self.api_version}/{self.kind}"


Kind = Union[str, TypeMeta]
"""A kind: `apps/v1/Deployment`, or a `TypeMeta`."""


def type_meta(kind: Kind) -> TypeMeta:
    """Returns the kind that a text names."""
    if isinstance(kind, TypeMeta):
        return kind
    api_version, slash, name = kind.rpartition("/")
    if not slash or not api_version or not name:
        raise ValueError(
            f"{kind!r} is not a kind: write VERSION/KIND or GROUP/VERSION/KIND, such as apps/v1/Deployment"
        )
    return TypeMeta(api_version, name)


def type_meta_of(obj: Object) -> TypeMeta:
    """Returns the kind of an object."""
    try:
        return TypeMeta(obj["apiVersion"], obj["kind"])
    except (KeyError, TypeError) as error:
        raise ValueError("an object needs `apiVersion` and `kind`") from error


@dataclass(frozen=True, order=True)
class Key:
    """Identifies one object of a kind. `namespace` is `None` for cluster-scoped kinds."""

    namespace: Optional[str]
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


def key_of(obj: Object) -> Key:
    """Returns the key of an object."""
    metadata = obj.get("metadata") or {}
    return Key(metadata.get("namespace"), metadata.get("name", ""))
