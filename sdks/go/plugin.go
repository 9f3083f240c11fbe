// Package pilothouse writes Kubernetes operators as plugins of Pilothouse.
//
// A plugin is a Plugin with a Controller for each kind that it reconciles. Its function takes the object, reads what it needs
// from the host's cache, and returns what should exist. The host does the rest: it watches and caches, queues and retries,
// applies children and status, and deletes children that are no longer wanted.
//
//	func init() {
//		pilothouse.Serve(pilothouse.Plugin{
//			Description: "Greets.",
//			Controllers: []pilothouse.Loop{pilothouse.Controller[Hello]{
//				For:       "example.com/v1/Hello",
//				Owns:      pilothouse.Kinds("v1/ConfigMap"),
//				Reconcile: reconcile,
//			}},
//		})
//	}
//
//	func main() {}
package pilothouse

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"runtime"
	"runtime/debug"
	"strings"
	"time"
)

// Request is a request to reconcile one key.
type Request struct {
	Controller string
	Key        Key
	// Its last known state, if the phase is Gone.
	Object    json.RawMessage
	Phase     Phase
	Attempt   int
	LastError string
}

// Loop is a Controller of any kind.
type Loop interface {
	manifest() ControllerManifest
	permissions() []Permission
	reconcile(ctx *Context, object json.RawMessage) (*Outcome, error)
}

// Controller is one reconcile loop, for objects of type T.
type Controller[T any] struct {
	For Kind
	// Instead of the kind in lower case.
	Name string
	// Kinds of children.
	Owns []Watch
	// Kinds that the reconcile reads from the cache. A change of what it read wakes it.
	Reads []Watch
	// Kinds that it does not read, and which keys their changes concern.
	Watches []MappedWatch
	// Which objects of the kind, and which of their changes.
	Namespaces []string
	Labels     string
	When       Predicate
	// True if the reconcile never writes a status.
	WithoutStatus bool
	// True if it writes Events.
	Events bool
	// The reconcile runs with the phase Deleting before an object goes.
	Finalizer      string
	MaxConcurrency uint32
	// After this time every key is reconciled again. 0 means ten hours, and a negative value never.
	Resync time.Duration
	// 0 means 10 seconds.
	Timeout time.Duration
	// A nil outcome changes nothing.
	Reconcile func(ctx *Context, object *T) (*Outcome, error)
}

func (c Controller[T]) manifest() ControllerManifest {
	name := c.Name
	if name == "" {
		_, kind, _ := strings.Cut(string(c.For), "/")
		name = strings.ToLower(kind[strings.LastIndex(kind, "/")+1:])
	}
	watch := Watch{Kind: c.For, Namespaces: c.Namespaces, Labels: c.Labels, When: c.When}
	concurrency := max(c.MaxConcurrency, 1)
	return ControllerManifest{name, watch, c.Owns, c.Watches, c.Reads, concurrency, c.Resync, c.Timeout, c.Finalizer}
}

func (c Controller[T]) permissions() []Permission {
	of := func(watch Watch, subresource string, verbs ...Verb) Permission {
		return Permission{Kind: watch.Kind, Verbs: verbs, Subresource: subresource, Namespaces: watch.Namespaces}
	}
	own := c.manifest().For
	needed := []Permission{of(own, "", Read)}
	if !c.WithoutStatus {
		needed = append(needed, of(own, "status", Apply))
	}
	if c.Finalizer != "" {
		needed = append(needed, of(own, "", Patch))
	}
	if c.Events {
		needed = append(needed, Permission{Kind: "v1/Event", Verbs: []Verb{Create}, Namespaces: c.Namespaces})
	}
	for _, child := range c.Owns {
		needed = append(needed, of(child, "", Read, Apply, Delete))
	}
	for _, mapped := range c.Watches {
		needed = append(needed, of(mapped.Watch, "", Read))
	}
	for _, read := range c.Reads {
		needed = append(needed, of(read, "", Read))
	}
	return needed
}

func (c Controller[T]) reconcile(ctx *Context, object json.RawMessage) (*Outcome, error) {
	decoded, err := decode[T](c.For, object)
	if err != nil {
		return nil, Terminal(err)
	}
	return c.Reconcile(ctx, decoded)
}

// Plugin is a plugin.
type Plugin struct {
	// One sentence, for people.
	Description string
	// "0.1.0" by default.
	Version     string
	Controllers []Loop
	// CustomResourceDefinitions, which the host applies before the controllers start: a CRD, or an object.
	CRDs []any
	// Permissions that no controller implies, such as for Context.Client.
	Permissions []Permission
	HTTP        []HTTPPermission
	Indexes     []Index
	Metrics     []Metric
	// The JSON schema of the administrator's configuration. Without it, the plugin takes none.
	ConfigSchema Schema
	// True if an instance may serve several calls.
	Reuse bool
}

// Manifest returns what the plugin is and needs.
func (p Plugin) Manifest() (Manifest, error) {
	manifest := Manifest{Version: p.Version, Description: p.Description, Indexes: p.Indexes, HTTP: p.HTTP, Reuse: p.Reuse}
	if manifest.Version == "" {
		manifest.Version = "0.1.0"
	}
	for _, loop := range p.Controllers {
		described := loop.manifest()
		for _, watch := range append(append([]Watch{described.For}, described.Owns...), described.Reads...) {
			if _, _, err := watch.Kind.Split(); err != nil {
				return Manifest{}, err
			}
		}
		manifest.Controllers = append(manifest.Controllers, described)
		manifest.Permissions = append(manifest.Permissions, loop.permissions()...)
	}
	manifest.Permissions = append(manifest.Permissions, p.Permissions...)
	var names []string
	for _, definition := range p.CRDs {
		if crd, isCRD := definition.(CRD); isCRD {
			definition = crd.Definition()
		}
		_, key, text, err := identity(definition)
		if err != nil {
			return Manifest{}, err
		}
		names = append(names, key.Name)
		manifest.CRDs = append(manifest.CRDs, text)
	}
	if len(names) > 0 {
		kind := Kind("apiextensions.k8s.io/v1/CustomResourceDefinition")
		manifest.Permissions = append(manifest.Permissions, Permission{Kind: kind, Verbs: []Verb{Apply}, Names: names})
	}
	for _, metric := range p.Metrics {
		manifest.Metrics = append(manifest.Metrics, metric.declaration())
	}
	if p.ConfigSchema != nil {
		schema, err := encoded(p.ConfigSchema)
		if err != nil {
			return Manifest{}, fmt.Errorf("the schema of the configuration cannot be encoded: %w", err)
		}
		manifest.ConfigSchema = schema
	}
	return manifest, nil
}

// Reconcile calls the function of a controller. An error or a panic becomes a failure; a panic is also a line in the log.
func (p Plugin) Reconcile(request Request, config json.RawMessage) (result Result) {
	ctx := &Context{
		Controller: request.Controller,
		Key:        request.Key,
		Phase:      request.Phase,
		Attempt:    request.Attempt,
		LastError:  request.LastError,
		Config:     config,
		Log:        slog.New(logger{}),
	}
	defer func() {
		if panicked := recover(); panicked != nil {
			host().Log("error", fmt.Sprintf("panic: %v\n%s", panicked, debug.Stack()), nil)
			message := strings.Join(append([]string{fmt.Sprintf("panic: %v", panicked)}, frames()...), ", at ")
			result = failed(fmt.Errorf("%s", message), ctx.events)
		}
	}()
	var meta Object
	if err := json.Unmarshal(request.Object, &meta); err == nil {
		ctx.generation = meta.Metadata.Generation
	}
	for _, loop := range p.Controllers {
		if loop.manifest().Name != request.Controller {
			continue
		}
		outcome, err := loop.reconcile(ctx, request.Object)
		if err != nil {
			return failed(err, ctx.events)
		}
		if outcome == nil {
			outcome = &Outcome{}
		}
		result, err := outcome.result()
		if err != nil {
			return failed(err, ctx.events)
		}
		result.Events = append(ctx.events, result.Events...)
		return result
	}
	return failed(Terminal(fmt.Errorf("the plugin has no controller %s", request.Controller)), nil)
}

// The frames of a stack in a message. The log has the others.
const mostFrames = 8

// frames returns where a panic was raised, the innermost frame first. It is called by what recovers the panic.
func frames() []string {
	callers := make([]uintptr, 64)
	callers = callers[:runtime.Callers(2, callers)]
	found, isPast := []string{}, false
	for all := runtime.CallersFrames(callers); ; {
		frame, more := all.Next()
		name := frame.Function[strings.LastIndex(frame.Function, "/")+1:]
		switch {
		case strings.HasSuffix(frame.Function, "].reconcile") && strings.Contains(frame.Function, "pilothouse-go"):
			return found
		case strings.HasPrefix(frame.Function, "runtime."):
			// What raises the panic stands between the deferred function and the plugin.
			isPast = true
		case isPast && len(found) < mostFrames:
			file := frame.File[strings.LastIndex(frame.File, "/")+1:]
			found = append(found, fmt.Sprintf("%s:%d in %s", file, frame.Line, name))
		}
		if !more {
			return found
		}
	}
}

// Metric is a Counter, a Gauge or a Histogram.
type Metric interface{ declaration() MetricManifest }

type metric struct{ declared MetricManifest }

func (m metric) declaration() MetricManifest { return m.declared }

// Counter is a number that only grows.
type Counter struct{ metric }

// NewCounter declares a counter. Its name ends in _total.
func NewCounter(name, help string, labels ...string) Counter {
	return Counter{metric{MetricManifest{Name: name, Type: "counter", Help: help, Labels: labels}}}
}

// Inc adds 1 to the series with these values of the labels.
func (c Counter) Inc(labels ...string) { c.Add(1, labels...) }

// Add adds to the series with these values of the labels.
func (c Counter) Add(more float64, labels ...string) {
	host().Metric("add", c.declared.Name, labels, more)
}

// Gauge is a number that goes up and down.
type Gauge struct{ metric }

// NewGauge declares a gauge.
func NewGauge(name, help string, labels ...string) Gauge {
	return Gauge{metric{MetricManifest{Name: name, Type: "gauge", Help: help, Labels: labels}}}
}

// Set sets the series with these values of the labels.
func (g Gauge) Set(value float64, labels ...string) {
	host().Metric("set", g.declared.Name, labels, value)
}

// Add adds to the series with these values of the labels.
func (g Gauge) Add(more float64, labels ...string) {
	host().Metric("add", g.declared.Name, labels, more)
}

// Histogram is how many observations were at most as large as each of some numbers.
type Histogram struct{ metric }

// NewHistogram declares a histogram. Without buckets, they go from 0.005 to 10.
func NewHistogram(name, help string, buckets []float64, labels ...string) Histogram {
	return Histogram{metric{MetricManifest{Name: name, Type: "histogram", Help: help, Labels: labels, Buckets: buckets}}}
}

// Observe adds an observation to the series with these values of the labels.
func (h Histogram) Observe(value float64, labels ...string) {
	host().Metric("observe", h.declared.Name, labels, value)
}

// Define makes a plugin for the administrator's configuration, or says why the configuration is not valid.
type Define func(config json.RawMessage) (Plugin, error)

var served Define

// Serve makes a plugin the component's. Call it in an init function. In a test, it does nothing.
func Serve(plugin Plugin) {
	ServeConfigured(func(config json.RawMessage) (Plugin, error) { return plugin, nil })
}

// ServeConfigured is as Serve, for a plugin that depends on the administrator's configuration.
func ServeConfigured(define Define) { served = define }

// Defined returns the plugin that is served, for a configuration.
func Defined(config json.RawMessage) (Plugin, error) {
	if served == nil {
		return Plugin{}, fmt.Errorf("there is no plugin: call pilothouse.Serve in an init function")
	}
	plugin, err := served(config)
	if err != nil {
		return Plugin{}, err
	}
	var fields map[string]any
	if err := json.Unmarshal(config, &fields); err != nil {
		return Plugin{}, fmt.Errorf("the configuration is no JSON object: %w", err)
	}
	if len(fields) > 0 && plugin.ConfigSchema == nil {
		return Plugin{}, fmt.Errorf("this plugin takes no configuration: give it a ConfigSchema")
	}
	return plugin, nil
}
