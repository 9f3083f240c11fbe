package pilothouse

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Verb is what a plugin does with an object.
type Verb string

// The verbs of permissions.
const (
	Read   Verb = "read"
	Create Verb = "create"
	Update Verb = "update"
	Patch  Verb = "patch"
	Apply  Verb = "apply"
	Delete Verb = "delete"
)

// Test is a test of one change of one object, or its opposite.
type Test struct {
	Name    string
	CEL     string
	Negated bool
}

// Predicate selects changes: those for which all tests of any one of the lists are true.
//
// All tests except CEL compare an object with its previous state. They let every change pass if the object is new or gone,
// negated or not.
type Predicate [][]Test

// The predicates of a single test.
var (
	// GenerationChanged selects, for most kinds, changes of the spec.
	GenerationChanged  = Predicate{{{Name: "generation"}}}
	LabelsChanged      = Predicate{{{Name: "labels"}}}
	AnnotationsChanged = Predicate{{{Name: "annotations"}}}
	FinalizersChanged  = Predicate{{{Name: "finalizers"}}}
	// DeletionRequested selects the change that sets metadata.deletionTimestamp.
	DeletionRequested = Predicate{{{Name: "deletion"}}}
	// ResourceVersionChanged selects everything except a resync.
	ResourceVersionChanged = Predicate{{{Name: "resource-version"}}}
)

// CEL selects changes for which an expression over `object` and `old` is true.
func CEL(expression string) Predicate { return Predicate{{{Name: "cel", CEL: expression}}} }

// Or selects what either predicate selects.
func (p Predicate) Or(other Predicate) Predicate { return append(slices.Clone(p), other...) }

// And selects what both predicates select.
func (p Predicate) And(other Predicate) Predicate {
	var both Predicate
	for _, one := range p {
		for _, two := range other {
			both = append(both, append(slices.Clone(one), two...))
		}
	}
	return both
}

// Not selects what the predicate does not select.
func (p Predicate) Not() Predicate {
	all := Predicate{{}}
	for _, tests := range p {
		var any Predicate
		for _, test := range tests {
			test.Negated = !test.Negated
			any = append(any, []Test{test})
		}
		all = all.And(any)
	}
	return all
}

// Watch is a kind that the host caches for the plugin, and which of its objects.
type Watch struct {
	Kind Kind
	// Empty means every granted namespace.
	Namespaces []string
	// A label selector. Other objects are not watched.
	Labels string
	// A field selector by which the API server can select this kind. Other objects are not watched.
	Fields string
	// Caches apiVersion, kind and metadata only.
	MetadataOnly bool
	// Field paths that are not cached.
	Without []string
	// Caches the objects compressed, for large kinds that are rarely read.
	Compressed bool
	// Which changes matter. Nil means every change.
	When Predicate
}

// Kinds returns watches for all objects of these kinds.
func Kinds(kinds ...Kind) []Watch {
	watches := make([]Watch, 0, len(kinds))
	for _, kind := range kinds {
		watches = append(watches, Watch{Kind: kind})
	}
	return watches
}

// Mapping says which keys a changed object concerns.
type Mapping struct {
	Name     string
	Argument string
}

// The mappings without an argument.
var (
	// Owner is the controlling owner reference, if it names an object of the controller's kind.
	Owner = Mapping{Name: "owner"}
	// AnyOwner is all owner references that name an object of the controller's kind.
	AnyOwner = Mapping{Name: "any-owner"}
	// SameKey is the same namespace and name as the changed object.
	SameKey = Mapping{Name: "same-key"}
)

// Label maps to the name in this label of the changed object, in the same namespace.
func Label(name string) Mapping { return Mapping{"label", name} }

// ByIndex maps to every object of the controller's kind that holds the changed object's name in this index.
func ByIndex(name string) Mapping { return Mapping{"index", name} }

// MappedWatch is a kind whose changes concern objects of another kind.
type MappedWatch struct {
	Watch   Watch
	Mapping Mapping
}

// Permission is what the plugin may do, if the administrator grants it.
type Permission struct {
	Kind  Kind
	Verbs []Verb
	// Such as "status". Empty means the object itself.
	Subresource string
	// Empty means every namespace.
	Namespaces []string
	// Empty means every name.
	Names []string
}

// HTTPPermission is a server that the plugin sends requests to.
type HTTPPermission struct {
	// A host name, "*.example.com" for all names below one, or an IP address.
	Host string
	// In upper case, such as "POST".
	Methods []string
	// 0 means 443, or 80 if Plain is set.
	Port uint16
	// True for http:// instead of https://.
	Plain bool
}

// Index finds cached objects by the value of a field.
type Index struct {
	// Unique within the plugin.
	Name string
	// A kind that a controller is for, owns, watches or reads.
	Kind Kind
	// A field path, such as "spec.nodeName" or "spec.volumes[*].configMap.name".
	Path string
}

// ControllerManifest is what the manifest says about a controller.
type ControllerManifest struct {
	Name           string
	For            Watch
	Owns           []Watch
	Watches        []MappedWatch
	Reads          []Watch
	MaxConcurrency uint32
	// 0 means the default, and a negative value never.
	Resync    time.Duration
	Timeout   time.Duration
	Finalizer string
}

// MetricManifest is what the manifest says about a metric.
type MetricManifest struct {
	Name    string
	Type    string
	Help    string
	Labels  []string
	Buckets []float64
}

// Manifest is what a plugin is and needs.
type Manifest struct {
	Version      string
	Description  string
	Controllers  []ControllerManifest
	Indexes      []Index
	Permissions  []Permission
	CRDs         []json.RawMessage
	ConfigSchema json.RawMessage
	Reuse        bool
	Metrics      []MetricManifest
	HTTP         []HTTPPermission
}

// Schema is a JSON schema.
type Schema = map[string]any

// Conditions is the schema of `conditions` in a status. Server-side apply merges the list by `type`.
func Conditions() Schema {
	text := func(more Schema) Schema {
		more["type"] = "string"
		return more
	}
	return Schema{
		"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": []string{"type"},
		"items": Schema{
			"type":     "object",
			"required": []string{"type", "status", "lastTransitionTime", "reason", "message"},
			"properties": Schema{
				"type":               text(Schema{"maxLength": 316}),
				"status":             text(Schema{"enum": []string{"True", "False", "Unknown"}}),
				"observedGeneration": Schema{"type": "integer", "format": "int64", "minimum": 0},
				"lastTransitionTime": text(Schema{"format": "date-time"}),
				"reason":             text(Schema{"minLength": 1, "maxLength": 1024}),
				"message":            text(Schema{"maxLength": 32768}),
			},
		},
	}
}

// Column is a column that `kubectl get` prints.
type Column struct {
	Name string
	// Such as ".spec.replicas".
	Path string
	// "string" by default.
	Type string
}

// CRD describes a CustomResourceDefinition with one version. For more, give the plugin an object of your own.
type CRD struct {
	// GROUP/VERSION/KIND.
	Kind Kind
	// The name of each field, and its JSON schema.
	Spec map[string]Schema
	// As Spec. With it, the kind has the subresource `status`.
	Status map[string]Schema
	// The fields of Spec that must be there.
	Required []string
	// By default, the kind in lower case, and that with an s.
	Singular, Plural string
	ShortNames       []string
	Columns          []Column
	ClusterScoped    bool
}

// Definition returns the object. It panics if Kind has no group, because nothing else can be done about it.
func (c CRD) Definition() Dynamic {
	apiVersion, kind, err := c.Kind.Split()
	if err != nil {
		panic(err)
	}
	group, version, found := strings.Cut(apiVersion, "/")
	if !found {
		panic(fmt.Errorf("%s has no group: write GROUP/VERSION/KIND, such as example.com/v1/%s", c.Kind, kind))
	}
	singular, plural := c.Singular, c.Plural
	if singular == "" {
		singular = strings.ToLower(kind)
	}
	if plural == "" {
		plural = singular + "s"
	}
	spec := Schema{"type": "object", "properties": c.Spec}
	if len(c.Required) > 0 {
		spec["required"] = c.Required
	}
	properties := Schema{"spec": spec}
	served := Dynamic{"name": version, "served": true, "storage": true}
	if c.Status != nil {
		properties["status"] = Schema{"type": "object", "properties": c.Status}
		served["subresources"] = Dynamic{"status": Dynamic{}}
	}
	schema := Schema{"type": "object", "required": []string{"spec"}, "properties": properties}
	served["schema"] = Dynamic{"openAPIV3Schema": schema}
	var columns []Dynamic
	for _, column := range c.Columns {
		kind := column.Type
		if kind == "" {
			kind = "string"
		}
		columns = append(columns, Dynamic{"name": column.Name, "type": kind, "jsonPath": column.Path})
	}
	if len(columns) > 0 {
		served["additionalPrinterColumns"] = columns
	}
	names := Dynamic{"kind": kind, "listKind": kind + "List", "plural": plural, "singular": singular}
	if len(c.ShortNames) > 0 {
		names["shortNames"] = c.ShortNames
	}
	scope := "Namespaced"
	if c.ClusterScoped {
		scope = "Cluster"
	}
	return Dynamic{
		"apiVersion": "apiextensions.k8s.io/v1",
		"kind":       "CustomResourceDefinition",
		"metadata":   Dynamic{"name": plural + "." + group},
		"spec":       Dynamic{"group": group, "names": names, "scope": scope, "versions": []Dynamic{served}},
	}
}
