package pilothouse

import (
	"encoding/json"
	"fmt"
	"strings"
)

// Kind is a kind of object: "v1/ConfigMap" or "apps/v1/Deployment".
type Kind string

// Split returns the apiVersion and the kind.
func (k Kind) Split() (apiVersion, kind string, err error) {
	at := strings.LastIndex(string(k), "/")
	if at < 1 || at == len(k)-1 {
		return "", "", fmt.Errorf("%q is not a kind: write VERSION/KIND or GROUP/VERSION/KIND, such as apps/v1/Deployment", k)
	}
	return string(k[:at]), string(k[at+1:]), nil
}

// Key identifies one object of a kind. Cluster-scoped kinds have no namespace.
type Key struct {
	Namespace string
	Name      string
}

func (k Key) String() string {
	if k.Namespace == "" {
		return k.Name
	}
	return k.Namespace + "/" + k.Name
}

// Dynamic is an object without a Go type of its own.
type Dynamic = map[string]any

// Object has what every object has. Embed it in the type of a kind.
type Object struct {
	APIVersion string     `json:"apiVersion"`
	Kind       string     `json:"kind"`
	Metadata   ObjectMeta `json:"metadata"`
}

// ObjectMeta is the metadata of an object, as far as plugins need it.
type ObjectMeta struct {
	Name              string            `json:"name,omitempty"`
	GenerateName      string            `json:"generateName,omitempty"`
	Namespace         string            `json:"namespace,omitempty"`
	UID               string            `json:"uid,omitempty"`
	ResourceVersion   string            `json:"resourceVersion,omitempty"`
	Generation        int64             `json:"generation,omitempty"`
	CreationTimestamp string            `json:"creationTimestamp,omitempty"`
	DeletionTimestamp string            `json:"deletionTimestamp,omitempty"`
	Labels            map[string]string `json:"labels,omitempty"`
	Annotations       map[string]string `json:"annotations,omitempty"`
	Finalizers        []string          `json:"finalizers,omitempty"`
	OwnerReferences   []OwnerReference  `json:"ownerReferences,omitempty"`
}

// OwnerReference names an object without which another one should not exist.
type OwnerReference struct {
	APIVersion         string `json:"apiVersion"`
	Kind               string `json:"kind"`
	Name               string `json:"name"`
	UID                string `json:"uid"`
	Controller         bool   `json:"controller,omitempty"`
	BlockOwnerDeletion bool   `json:"blockOwnerDeletion,omitempty"`
}

// identity returns what names an object, and its JSON.
func identity(object any) (Kind, Key, []byte, error) {
	text, err := json.Marshal(object)
	if err != nil {
		return "", Key{}, nil, fmt.Errorf("an object cannot be encoded: %w", err)
	}
	var found Object
	if err := json.Unmarshal(text, &found); err != nil {
		return "", Key{}, nil, fmt.Errorf("an object is not valid: %w", err)
	}
	if found.APIVersion == "" || found.Kind == "" {
		return "", Key{}, nil, fmt.Errorf("an object needs `apiVersion` and `kind`")
	}
	key := Key{found.Metadata.Namespace, found.Metadata.Name}
	return Kind(found.APIVersion + "/" + found.Kind), key, text, nil
}
