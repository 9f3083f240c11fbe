package pilothouse

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"time"
)

// Phase is whether the reconciled object exists.
type Phase string

// The phases.
const (
	Live     Phase = "live"
	Deleting Phase = "deleting"
	// Gone comes with the last known state of the object.
	Gone Phase = "gone"
)

// Context is one call of a reconcile.
type Context struct {
	// The controller's name in the manifest.
	Controller string
	// The key of the reconciled object.
	Key   Key
	Phase Phase
	// 1 for the first attempt after a success.
	Attempt int
	// Why the previous attempt failed, if Attempt is greater than 1.
	LastError string
	// The administrator's configuration.
	Config json.RawMessage
	// Writes lines to the host's log.
	Log *slog.Logger

	events     []Event
	generation int64
}

// Beside returns the key of this name in the namespace of the reconciled object.
func (c *Context) Beside(name string) Key { return Key{c.Key.Namespace, name} }

// Get returns an object of the cache, or nil if the cluster has no such object. The reconcile runs again when the object
// changes, appears or goes.
func Get[T any](_ *Context, kind Kind, key Key) (*T, error) {
	text, err := host().Get(kind, key)
	if err != nil || text == nil {
		return nil, err
	}
	return decode[T](kind, text)
}

// ListOptions selects objects.
type ListOptions struct {
	// Empty means every granted namespace.
	Namespace string
	// A label selector.
	Labels string
	// The name of an index in the manifest, and the value to look up.
	Index, Value string
	// Field paths to return. Empty returns whole objects.
	Fields []string
}

func (o ListOptions) query(kind Kind) Query {
	return Query{kind, o.Namespace, o.Labels, o.Index, o.Value, o.Fields, ""}
}

// List returns objects of the cache, ordered by namespace and name. The reconcile runs again when the list changes.
func List[T any](_ *Context, kind Kind, options ListOptions) ([]T, error) {
	var found []T
	query := options.query(kind)
	for {
		items, next, err := host().List(query)
		if err != nil {
			return nil, err
		}
		for _, item := range items {
			object, err := decode[T](kind, item)
			if err != nil {
				return nil, err
			}
			found = append(found, *object)
		}
		if next == "" {
			return found, nil
		}
		query.After = next
	}
}

// Keys returns the keys of objects of the cache. Changes of the objects do not wake the reconcile.
func (c *Context) Keys(kind Kind, options ListOptions) ([]Key, error) {
	var found []Key
	query := options.query(kind)
	for {
		keys, next, err := host().Keys(query)
		if err != nil {
			return nil, err
		}
		found = append(found, keys...)
		if next == "" {
			return found, nil
		}
		query.After = next
	}
}

func decode[T any](kind Kind, text []byte) (*T, error) {
	object := new(T)
	if err := json.Unmarshal(text, object); err != nil {
		return nil, fmt.Errorf("cannot decode a %s: %w", kind, err)
	}
	return object, nil
}

// Event adds an Event to the outcome, or to the failure. Needs Events of the controller.
func (c *Context) Event(event Event) { c.events = append(c.events, event) }

// Now returns when this call began. The time stays the same during the call.
func (c *Context) Now() time.Time { return host().Now() }

// Random returns random bytes from the host's generator, fit for secrets. At most 65,536.
func (c *Context) Random(count int) []byte { return host().Random(count) }

// HTTP sends a request to a server outside the cluster's API. Needs an HTTPPermission. A response of any status is a success.
func (c *Context) HTTP(request HTTPRequest) (*HTTPResponse, error) { return host().HTTP(request) }

// Client sends requests to the API server in the plugin's name. Each needs a permission.
func (c *Context) Client() Client { return Client{} }

// Condition is a condition in a status.
type Condition struct {
	Type               string `json:"type"`
	Status             string `json:"status"`
	Reason             string `json:"reason"`
	Message            string `json:"message"`
	LastTransitionTime string `json:"lastTransitionTime"`
	ObservedGeneration int64  `json:"observedGeneration,omitempty"`
}

// Condition returns a condition of the reconciled object, for SetCondition.
func (c *Context) Condition(kind string, holds bool, reason, message string) Condition {
	status := "False"
	if holds {
		status = "True"
	}
	at := c.Now().UTC().Format(time.RFC3339)
	return Condition{kind, status, reason, message, at, c.generation}
}

// SetCondition returns the conditions with `added` instead of the condition of the same type. If its status stays the same,
// LastTransitionTime stays, too. So a reconcile that finds nothing new changes nothing.
func SetCondition(conditions []Condition, added Condition) []Condition {
	kept := append([]Condition(nil), conditions...)
	for at, old := range kept {
		if old.Type == added.Type {
			if old.Status == added.Status {
				added.LastTransitionTime = old.LastTransitionTime
			}
			kept[at] = added
			return kept
		}
	}
	return append(kept, added)
}

// logger writes records of log/slog to the host's log.
type logger struct{ fields [][2]string }

func (l logger) Enabled(context.Context, slog.Level) bool { return true }

func (l logger) Handle(_ context.Context, record slog.Record) error {
	level := "debug"
	switch {
	case record.Level >= slog.LevelError:
		level = "error"
	case record.Level >= slog.LevelWarn:
		level = "warn"
	case record.Level >= slog.LevelInfo:
		level = "info"
	}
	fields := append([][2]string(nil), l.fields...)
	record.Attrs(func(attr slog.Attr) bool {
		fields = append(fields, [2]string{attr.Key, attr.Value.String()})
		return true
	})
	host().Log(level, record.Message, fields)
	return nil
}

func (l logger) WithAttrs(attrs []slog.Attr) slog.Handler {
	fields := append([][2]string(nil), l.fields...)
	for _, attr := range attrs {
		fields = append(fields, [2]string{attr.Key, attr.Value.String()})
	}
	return logger{fields}
}

func (l logger) WithGroup(string) slog.Handler { return l }

// Client sends requests to the API server: see Context.Client.
type Client struct{}

// Get reads an object from the API server, past the cache.
func (Client) Get(kind Kind, key Key) (Dynamic, error) {
	return one(ClientCall{Verb: "get", Kind: kind, Key: key})
}

// List reads objects from the API server, past the cache. An empty namespace means all.
func (Client) List(kind Kind, namespace, labels, fields string) ([]Dynamic, error) {
	call := ClientCall{Verb: "list", Kind: kind, Key: Key{Namespace: namespace}, Labels: labels, Fields: fields}
	var found []Dynamic
	for {
		items, next, err := host().Client(call)
		if err != nil {
			return nil, err
		}
		for _, item := range items {
			object, err := decode[Dynamic](kind, item)
			if err != nil {
				return nil, err
			}
			found = append(found, *object)
		}
		if next == "" {
			return found, nil
		}
		call.After = next
	}
}

// Create creates an object.
func (Client) Create(object any) (Dynamic, error) { return of("create", object, "", false) }

// Update replaces an object. If it has a resourceVersion, that must be the current one.
func (Client) Update(object any) (Dynamic, error) { return of("update", object, "", false) }

// UpdateStatus replaces the status of an object.
func (Client) UpdateStatus(object any) (Dynamic, error) { return of("update", object, "status", false) }

// Apply applies an object by server-side apply. With force, it takes fields from other managers.
func (Client) Apply(object any, force bool) (Dynamic, error) { return of("apply", object, "", force) }

// Patch patches an object by a JSON merge patch.
func (Client) Patch(kind Kind, key Key, patch any) (Dynamic, error) {
	body, err := json.Marshal(patch)
	if err != nil {
		return nil, fmt.Errorf("a patch cannot be encoded: %w", err)
	}
	return one(ClientCall{Verb: "patch", Kind: kind, Key: key, Body: body, PatchType: "merge"})
}

// Delete deletes an object. Succeeds if it is gone, or is marked for deletion and waits for its finalizers.
func (Client) Delete(kind Kind, key Key) error {
	_, _, err := host().Client(ClientCall{Verb: "delete", Kind: kind, Key: key, Propagation: "background"})
	return err
}

// Evict evicts a Pod. A budget that does not allow it is a ClientError with the reason "too-many-requests".
func (Client) Evict(pod Key) error {
	_, _, err := host().Client(ClientCall{Verb: "evict", Kind: "v1/Pod", Key: pod, Subresource: "eviction"})
	return err
}

// Logs reads a container's log: at most the first 1 MiB of the last lines. 0 means all lines.
func (Client) Logs(pod Key, container string, lines uint32) (string, error) {
	call := ClientCall{Verb: "logs", Kind: "v1/Pod", Key: pod, Subresource: "log", Container: container, TailLines: lines}
	_, text, err := host().Client(call)
	return text, err
}

func of(verb string, object any, subresource string, force bool) (Dynamic, error) {
	kind, key, text, err := identity(object)
	if err != nil {
		return nil, err
	}
	return one(ClientCall{Verb: verb, Kind: kind, Key: key, Body: text, Subresource: subresource, Force: force})
}

func one(call ClientCall) (Dynamic, error) {
	objects, _, err := host().Client(call)
	if err != nil {
		return nil, err
	}
	if len(objects) != 1 {
		return nil, fmt.Errorf("the host answered with %d objects", len(objects))
	}
	object, err := decode[Dynamic](call.Kind, objects[0])
	if err != nil {
		return nil, err
	}
	return *object, nil
}
