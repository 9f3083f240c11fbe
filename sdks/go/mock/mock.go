// Package mock tests a plugin natively: its own code runs under `go test`, without a cluster and without a sandbox.
//
// The host refuses reads, requests, children, a status and Events that the manifest does not ask for. It is not an API server:
// it does not validate by a schema, and an applied list replaces the old one. Field selectors are ignored.
package mock

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/url"
	"reflect"
	"regexp"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	"pilothouse.dev/pilothouse-go"
)

// Line is a line of the log.
type Line struct {
	Level, Message string
	Fields         map[string]string
}

// Host calls a plugin, and answers it out of objects in memory.
type Host struct {
	// What describe returns.
	Manifest pilothouse.Manifest
	// The requests to the API server that changed something, in order.
	Calls     []pilothouse.ClientCall
	HTTPCalls []pilothouse.HTTPRequest
	Lines     []Line
	// Those of outcomes and failures, in order.
	Events []pilothouse.Event
	// By name and label values, separated by blanks: the values of a histogram, or the present value.
	Metrics map[string][]float64
	// What Context.Now returns.
	Time time.Time

	t         T
	plugin    pilothouse.Plugin
	config    json.RawMessage
	objects   map[place]pilothouse.Dynamic
	refused   []permission
	responses map[string]pilothouse.HTTPResponse
	loop      pilothouse.ControllerManifest
	key       pilothouse.Key
	asked     map[string][]pilothouse.Watch
	version   int
	random    *rand.ChaCha8
}

type place struct {
	kind pilothouse.Kind
	key  pilothouse.Key
}

type permission struct {
	verb pilothouse.Verb
	kind pilothouse.Kind
}

// T is a *testing.T.
type T interface {
	Helper()
	Fatalf(format string, args ...any)
}

// New creates a host for the plugin that is served, with objects of any type.
func New(t T, objects ...any) *Host {
	t.Helper()
	return Configured(t, "{}", objects...)
}

// Configured is as New, with the administrator's configuration as JSON.
func Configured(t T, config string, objects ...any) *Host {
	t.Helper()
	plugin, err := pilothouse.Defined(json.RawMessage(config))
	if err != nil {
		t.Fatalf("the plugin cannot describe itself: %s", err)
	}
	host := For(t, plugin, objects...)
	host.config = json.RawMessage(config)
	return host
}

// For creates a host for a plugin.
func For(t T, plugin pilothouse.Plugin, objects ...any) *Host {
	t.Helper()
	manifest, err := plugin.Manifest()
	if err != nil {
		t.Fatalf("the plugin cannot describe itself: %s", err)
	}
	host := &Host{
		Manifest:  manifest,
		Metrics:   map[string][]float64{},
		Time:      time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC),
		t:         t,
		plugin:    plugin,
		config:    json.RawMessage("{}"),
		objects:   map[place]pilothouse.Dynamic{},
		responses: map[string]pilothouse.HTTPResponse{},
		asked:     map[string][]pilothouse.Watch{},
		random:    rand.NewChaCha8([32]byte{}),
	}
	for _, object := range objects {
		host.Put(object)
	}
	return host
}

// Refuse does not grant a permission that the manifest asks for.
func (h *Host) Refuse(verb pilothouse.Verb, kind pilothouse.Kind) {
	h.refused = append(h.refused, permission{verb, kind})
}

// Respond sets the response to a request to another server.
func (h *Host) Respond(method, url string, status int, body string) {
	h.responses[method+" "+url] = pilothouse.HTTPResponse{Status: status, Body: []byte(body)}
}

// Put adds or replaces an object. It fills in uid, resourceVersion and generation.
func (h *Host) Put(object any) {
	h.t.Helper()
	stored := h.dynamic(object)
	at := placeOf(stored)
	if at.key.Name == "" {
		h.t.Fatalf("an object of kind %s has no metadata.name", at.kind)
	}
	h.version++
	metadata, old := metadataOf(stored), h.objects[at]
	if _, found := metadata["uid"]; !found {
		metadata["uid"] = fmt.Sprintf("uid-%d", h.version)
		if old != nil {
			metadata["uid"] = metadataOf(old)["uid"]
		}
	}
	generation := 1.0
	if old != nil {
		generation, _ = metadataOf(old)["generation"].(float64)
		if !reflect.DeepEqual(old["spec"], stored["spec"]) {
			generation++
		}
	}
	metadata["generation"], metadata["resourceVersion"] = generation, strconv.Itoa(h.version)
	h.objects[at] = stored
}

// Remove removes an object at once.
func (h *Host) Remove(kind pilothouse.Kind, key pilothouse.Key) {
	h.version++
	delete(h.objects, place{kind, key})
}

// Find returns an object of the cluster, or nil.
func (h *Host) Find(kind pilothouse.Kind, key pilothouse.Key) pilothouse.Dynamic {
	h.t.Helper()
	if found := h.objects[place{kind, key}]; found != nil {
		return h.dynamic(found)
	}
	return nil
}

// Reconcile calls the only controller of the plugin for an object, and returns the outcome without writing it. The error is a
// Failure.
func (h *Host) Reconcile(namespace, name string) (pilothouse.Result, error) {
	h.t.Helper()
	if len(h.Manifest.Controllers) != 1 {
		h.t.Fatalf("the plugin has %d controllers: name one with ReconcileWith", len(h.Manifest.Controllers))
	}
	return h.ReconcileWith(pilothouse.Request{
		Controller: h.Manifest.Controllers[0].Name,
		Key:        pilothouse.Key{Namespace: namespace, Name: name},
	})
}

// ReconcileWith is as Reconcile, with a request of the test's own. The object is that of the cluster.
func (h *Host) ReconcileWith(request pilothouse.Request) (pilothouse.Result, error) {
	h.t.Helper()
	at := slices.IndexFunc(h.Manifest.Controllers, func(loop pilothouse.ControllerManifest) bool {
		return loop.Name == request.Controller
	})
	if at < 0 {
		h.t.Fatalf("the plugin has no controller %s", request.Controller)
	}
	h.loop, h.key = h.Manifest.Controllers[at], request.Key
	object := h.objects[place{h.loop.For.Kind, request.Key}]
	if object == nil {
		h.t.Fatalf("there is no %s %s: put it first", h.loop.For.Kind, request.Key)
	}
	if request.Phase == "" {
		request.Phase = pilothouse.Live
		if metadataOf(object)["deletionTimestamp"] != nil {
			request.Phase = pilothouse.Deleting
		}
	}
	request.Attempt = max(request.Attempt, 1)
	request.Object, _ = json.Marshal(object)
	before := pilothouse.SetHost(h)
	result := h.plugin.Reconcile(request, h.config)
	pilothouse.SetHost(before)
	h.check(result)
	h.Events = append(h.Events, result.Events...)
	if result.Failure != nil {
		return result, result.Failure
	}
	if result.Watches != nil {
		h.asked[h.loop.Name+" "+h.key.String()] = result.Watches
	}
	return result, nil
}

// Settle reconciles and writes the outcome, until a call changes nothing. It returns the last outcome.
func (h *Host) Settle(namespace, name string) (pilothouse.Result, error) {
	h.t.Helper()
	for range 100 {
		before := h.version
		result, err := h.Reconcile(namespace, name)
		if err != nil {
			return result, err
		}
		h.write(result)
		if h.version == before {
			return result, nil
		}
	}
	h.t.Fatalf("%s/%s has not settled after 100 calls: each call changes something", namespace, name)
	return pilothouse.Result{}, nil
}

// check fails the test if the manifest does not allow the result.
func (h *Host) check(result pilothouse.Result) {
	h.t.Helper()
	if result.Status != nil && !h.may(pilothouse.Apply, h.loop.For.Kind, h.key, "status") {
		h.t.Fatalf("the manifest lacks `apply` of the status of %s", h.loop.For.Kind)
	}
	namespace := h.key.Namespace
	if namespace == "" {
		namespace = "default"
	}
	if len(result.Events) > 0 && !h.may(pilothouse.Create, "v1/Event", pilothouse.Key{Namespace: namespace}, "") {
		h.t.Fatalf("the manifest lacks Events: set `Events: true`")
	}
	for _, child := range result.Children {
		if !slices.ContainsFunc(h.loop.Owns, func(watch pilothouse.Watch) bool { return watch.Kind == child.Kind }) {
			h.t.Fatalf("the controller %s does not own %s: add it to `Owns`", h.loop.Name, child.Kind)
		}
		if child.Key.Namespace != "" && h.key.Namespace != "" && child.Key.Namespace != h.key.Namespace {
			h.t.Fatalf("a child of %s is in the namespace %s", h.key, child.Key.Namespace)
		}
	}
}

func (h *Host) write(result pilothouse.Result) {
	h.t.Helper()
	at := place{h.loop.For.Kind, h.key}
	parent := h.objects[at]
	metadata := metadataOf(parent)
	if result.Children != nil && metadata["deletionTimestamp"] == nil {
		owner := pilothouse.Dynamic{
			"apiVersion": parent["apiVersion"], "kind": parent["kind"], "name": metadata["name"], "uid": metadata["uid"],
			"controller": true, "blockOwnerDeletion": true,
		}
		wanted := map[place]bool{}
		for _, child := range result.Children {
			applied := h.dynamic(child.Object)
			if metadata["namespace"] != nil {
				metadataOf(applied)["namespace"] = metadata["namespace"]
			}
			metadataOf(applied)["ownerReferences"] = []any{owner}
			wanted[placeOf(applied)] = true
			h.replace(merge(h.objects[placeOf(applied)], applied))
		}
		for other, object := range maps.Clone(h.objects) {
			isOwned := slices.ContainsFunc(h.loop.Owns, func(watch pilothouse.Watch) bool { return watch.Kind == other.kind })
			owners, _ := metadataOf(object)["ownerReferences"].([]any)
			isOurs := slices.ContainsFunc(owners, func(owner any) bool {
				reference, _ := owner.(map[string]any)
				return reference["uid"] == metadata["uid"]
			})
			if isOwned && isOurs && !wanted[other] {
				h.Remove(other.kind, other.key)
			}
		}
	}
	if result.Status != nil {
		changed := maps.Clone(parent)
		var status any
		if err := json.Unmarshal(result.Status, &status); err != nil {
			h.t.Fatalf("the status is not valid: %s", err)
		}
		changed["status"] = status
		h.replace(changed)
	}
}

func (h *Host) replace(object pilothouse.Dynamic) {
	h.t.Helper()
	object = h.dynamic(object)
	if !reflect.DeepEqual(h.objects[placeOf(object)], object) {
		h.Put(object)
	}
}

func (h *Host) may(verb pilothouse.Verb, kind pilothouse.Kind, key pilothouse.Key, subresource string) bool {
	if slices.Contains(h.refused, permission{verb, kind}) {
		return false
	}
	return slices.ContainsFunc(h.Manifest.Permissions, func(granted pilothouse.Permission) bool {
		return covers(granted.Kind, kind) && slices.Contains(granted.Verbs, verb) && granted.Subresource == subresource &&
			(len(granted.Namespaces) == 0 || slices.Contains(granted.Namespaces, key.Namespace)) &&
			(len(granted.Names) == 0 || slices.Contains(granted.Names, key.Name))
	})
}

func covers(granted, kind pilothouse.Kind) bool {
	pattern, isPattern := strings.CutSuffix(string(granted), "/*")
	apiVersion, _, _ := kind.Split()
	group, _, _ := strings.Cut(apiVersion, "/")
	return granted == kind || isPattern && slices.Contains([]string{"*", apiVersion, group + "/*"}, pattern)
}

func (h *Host) readable(kind pilothouse.Kind, key pilothouse.Key) error {
	known := append([]pilothouse.Watch{h.loop.For}, h.loop.Owns...)
	known = append(append(known, h.loop.Reads...), h.asked[h.loop.Name+" "+h.key.String()]...)
	for _, mapped := range h.loop.Watches {
		known = append(known, mapped.Watch)
	}
	if !slices.ContainsFunc(known, func(watch pilothouse.Watch) bool { return watch.Kind == kind }) {
		message := fmt.Sprintf("cannot read the cache: %s is not cached: add it to `Reads`", kind)
		return &pilothouse.ReadError{Kind: "not-granted", Message: message}
	}
	if !h.may(pilothouse.Read, kind, key, "") {
		message := fmt.Sprintf("cannot read the cache: `read` of %s %s is not granted", kind, key)
		return &pilothouse.ReadError{Kind: "not-granted", Message: message}
	}
	return nil
}

// Get is what the plugin sees, as are the methods below.
func (h *Host) Get(kind pilothouse.Kind, key pilothouse.Key) (json.RawMessage, error) {
	if err := h.readable(kind, key); err != nil {
		return nil, err
	}
	if found := h.objects[place{kind, key}]; found != nil {
		return json.Marshal(found)
	}
	return nil, nil
}

func (h *Host) List(query pilothouse.Query) ([]json.RawMessage, string, error) {
	namespace := query.Namespace
	for _, granted := range h.Manifest.Permissions {
		if namespace == "" && granted.Kind == query.Kind && len(granted.Namespaces) > 0 {
			namespace = granted.Namespaces[0]
		}
	}
	if err := h.readable(query.Kind, pilothouse.Key{Namespace: namespace}); err != nil {
		return nil, "", err
	}
	found, err := h.selected(query)
	return found, "", err
}

func (h *Host) Keys(query pilothouse.Query) ([]pilothouse.Key, string, error) {
	items, _, err := h.List(query)
	var keys []pilothouse.Key
	for _, item := range items {
		keys = append(keys, placeOf(h.dynamic(item)).key)
	}
	return keys, "", err
}

func (h *Host) selected(query pilothouse.Query) ([]json.RawMessage, error) {
	path := ""
	if query.Index != "" {
		at := slices.IndexFunc(h.Manifest.Indexes, func(index pilothouse.Index) bool {
			return index.Name == query.Index && index.Kind == query.Kind
		})
		if at < 0 {
			message := fmt.Sprintf("the query is not valid: %s has no index %s", query.Kind, query.Index)
			return nil, &pilothouse.ReadError{Kind: "invalid", Message: message}
		}
		path = h.Manifest.Indexes[at].Path
	}
	var places []place
	for at, object := range h.objects {
		labels, _ := metadataOf(object)["labels"].(map[string]any)
		holds, err := Matches(query.Labels, labels)
		if err != nil {
			return nil, err
		}
		isHere := at.kind == query.Kind && (query.Namespace == "" || query.Namespace == at.key.Namespace)
		isIndexed := path == "" || slices.ContainsFunc(Values(object, path), func(value any) bool {
			return fmt.Sprint(value) == query.Value
		})
		if isHere && holds && isIndexed && h.may(pilothouse.Read, at.kind, at.key, "") {
			places = append(places, at)
		}
	}
	sort.Slice(places, func(i, j int) bool { return places[i].key.String() < places[j].key.String() })
	var found []json.RawMessage
	for _, at := range places {
		text, err := json.Marshal(h.objects[at])
		if err != nil {
			return nil, err
		}
		found = append(found, text)
	}
	return found, nil
}

func (h *Host) Client(call pilothouse.ClientCall) ([]json.RawMessage, string, error) {
	verb := pilothouse.Verb(call.Verb)
	switch call.Verb {
	case "get", "list", "logs":
		verb = pilothouse.Read
	case "evict":
		verb = pilothouse.Create
	}
	if !h.may(verb, call.Kind, call.Key, call.Subresource) {
		message := fmt.Sprintf("the request is not granted: `%s` of %s %s", verb, call.Kind, call.Key)
		return nil, "", &pilothouse.ClientError{Kind: "not-granted", Message: message}
	}
	if call.Verb == "list" {
		found, err := h.selected(pilothouse.Query{Kind: call.Kind, Namespace: call.Key.Namespace, Labels: call.Labels})
		return found, "", err
	}
	at := place{call.Kind, call.Key}
	old := h.objects[at]
	if old == nil && !slices.Contains([]string{"create", "apply", "delete", "evict"}, call.Verb) {
		message := fmt.Sprintf("%s %s is not there", call.Kind, call.Key)
		return nil, "", &pilothouse.ClientError{Kind: "api", Message: message, Code: 404, Reason: "not-found"}
	}
	changed := old
	switch call.Verb {
	case "get":
	case "logs":
		return nil, "", nil
	case "create":
		if old != nil {
			message := fmt.Sprintf("%s %s exists", call.Kind, call.Key)
			return nil, "", &pilothouse.ClientError{Kind: "api", Message: message, Code: 409, Reason: "already-exists"}
		}
		changed = h.dynamic(call.Body)
		metadata := metadataOf(changed)
		if metadata["name"] == nil {
			metadata["name"] = fmt.Sprintf("%v%d", metadata["generateName"], h.version)
		}
	case "update":
		changed = h.dynamic(call.Body)
		if call.Subresource == "status" {
			changed = merge(old, pilothouse.Dynamic{"status": changed["status"]})
		}
	case "apply", "patch":
		var body pilothouse.Dynamic
		if err := json.Unmarshal(call.Body, &body); err != nil {
			return nil, "", &pilothouse.ClientError{Kind: "invalid", Message: "the request is not valid: " + err.Error()}
		}
		changed = merge(old, body)
	case "delete", "evict":
		h.Calls = append(h.Calls, call)
		h.Remove(call.Kind, call.Key)
		return nil, "", nil
	}
	if call.Verb != "get" {
		h.Calls = append(h.Calls, call)
		h.Put(changed)
		changed = h.objects[placeOf(h.dynamic(changed))]
	}
	text, err := json.Marshal(changed)
	return []json.RawMessage{text}, "", err
}

func (h *Host) HTTP(request pilothouse.HTTPRequest) (*pilothouse.HTTPResponse, error) {
	where, err := url.Parse(request.URL)
	if err != nil {
		return nil, &pilothouse.HTTPError{Kind: "invalid", Message: "the request is not valid: " + err.Error()}
	}
	isPlain := where.Scheme == "http"
	usual := func(plain bool) string {
		if plain {
			return "80"
		}
		return "443"
	}
	port := where.Port()
	if port == "" {
		port = usual(isPlain)
	}
	granted := slices.ContainsFunc(h.Manifest.HTTP, func(rule pilothouse.HTTPPermission) bool {
		open := usual(rule.Plain)
		if rule.Port != 0 {
			open = strconv.Itoa(int(rule.Port))
		}
		below, isPattern := strings.CutPrefix(rule.Host, "*")
		named := rule.Host == where.Hostname() || isPattern && strings.HasSuffix(where.Hostname(), below)
		return named && open == port && rule.Plain == isPlain && slices.Contains(rule.Methods, request.Method)
	})
	what := request.Method + " " + request.URL
	if !granted {
		return nil, &pilothouse.HTTPError{Kind: "not-granted", Message: "the request is not granted: " + what}
	}
	h.HTTPCalls = append(h.HTTPCalls, request)
	response, found := h.responses[what]
	if !found {
		h.t.Fatalf("the test does not Respond to %s", what)
	}
	return &response, nil
}

func (h *Host) Log(level, message string, fields [][2]string) {
	line := Line{level, message, map[string]string{}}
	for _, field := range fields {
		line.Fields[field[0]] = field[1]
	}
	h.Lines = append(h.Lines, line)
}

func (h *Host) Metric(change, name string, labels []string, value float64) {
	at := slices.IndexFunc(h.Manifest.Metrics, func(metric pilothouse.MetricManifest) bool { return metric.Name == name })
	if at < 0 {
		h.t.Fatalf("the manifest does not declare the metric %s", name)
	}
	if declared := h.Manifest.Metrics[at].Labels; len(declared) != len(labels) {
		h.t.Fatalf("the metric %s has the labels %v", name, declared)
	}
	series := strings.Join(append([]string{name}, labels...), " ")
	old := h.Metrics[series]
	switch {
	case change == "observe":
		h.Metrics[series] = append(old, value)
	case change == "add" && len(old) > 0:
		h.Metrics[series] = []float64{old[0] + value}
	default:
		h.Metrics[series] = []float64{value}
	}
}

func (h *Host) Now() time.Time { return h.Time }

func (h *Host) Random(count int) []byte {
	drawn := make([]byte, count)
	_, _ = h.random.Read(drawn)
	return drawn
}

// dynamic returns a copy of an object of any type. It fails the test if the object is not JSON.
func (h *Host) dynamic(object any) pilothouse.Dynamic {
	h.t.Helper()
	text, err := json.Marshal(object)
	var copied pilothouse.Dynamic
	if err == nil {
		err = json.Unmarshal(text, &copied)
	}
	if err != nil {
		h.t.Fatalf("an object is not valid: %s", err)
	}
	return copied
}

func metadataOf(object pilothouse.Dynamic) map[string]any {
	metadata, isMap := object["metadata"].(map[string]any)
	if !isMap {
		metadata = map[string]any{}
		object["metadata"] = metadata
	}
	return metadata
}

func placeOf(object pilothouse.Dynamic) place {
	text := func(value any) string {
		text, _ := value.(string)
		return text
	}
	metadata := metadataOf(object)
	kind := pilothouse.Kind(text(object["apiVersion"]) + "/" + text(object["kind"]))
	return place{kind, pilothouse.Key{Namespace: text(metadata["namespace"]), Name: text(metadata["name"])}}
}

// merge follows the rules of a JSON merge patch.
func merge(old, added map[string]any) map[string]any {
	merged := maps.Clone(old)
	if merged == nil {
		merged = map[string]any{}
	}
	for name, value := range added {
		switch value := value.(type) {
		case nil:
			delete(merged, name)
		case map[string]any:
			inner, _ := merged[name].(map[string]any)
			merged[name] = merge(inner, value)
		default:
			merged[name] = value
		}
	}
	return merged
}

var (
	absent      = regexp.MustCompile(`^!\s*(\S+)$`)
	members     = regexp.MustCompile(`^(\S+)\s+(in|notin)\s*\(([^)]*)\)$`)
	equality    = regexp.MustCompile(`^([^\s!=]+)\s*(==|=|!=)\s*(\S*)$`)
	existence   = regexp.MustCompile(`^[^\s!=]+$`)
	requirement = regexp.MustCompile(`(?:[^,(]|\([^)]*\))+`)
	step        = regexp.MustCompile(`\.?(?:([^.\[\]]+)|(\[\*\])|\["([^"]*)"\])`)
)

// Matches returns true if a label selector of Kubernetes matches.
func Matches(selector string, labels map[string]any) (bool, error) {
	for _, part := range requirement.FindAllString(selector, -1) {
		part = strings.TrimSpace(part)
		holds := false
		if found := absent.FindStringSubmatch(part); found != nil {
			_, exists := labels[found[1]]
			holds = !exists
		} else if found := members.FindStringSubmatch(part); found != nil {
			isIn := slices.ContainsFunc(strings.Split(found[3], ","), func(member string) bool {
				return labels[found[1]] == strings.TrimSpace(member)
			})
			holds = isIn == (found[2] == "in")
		} else if found := equality.FindStringSubmatch(part); found != nil {
			holds = (labels[found[1]] == found[3]) == (found[2] != "!=")
		} else if existence.MatchString(part) {
			_, holds = labels[part]
		} else {
			message := fmt.Sprintf("the query is not valid: %q is no requirement of a label selector", part)
			return false, &pilothouse.ReadError{Kind: "invalid", Message: message}
		}
		if !holds {
			return false, nil
		}
	}
	return true, nil
}

// Values returns what an object holds at a field path: `spec.volumes[*].name`, `metadata.labels["a.b/c"]`.
func Values(object any, path string) []any {
	found := []any{object}
	for _, parts := range step.FindAllStringSubmatch(path, -1) {
		var next []any
		for _, value := range found {
			if list, isList := value.([]any); isList && parts[2] != "" {
				next = append(next, list...)
			} else if fields, isMap := value.(map[string]any); isMap {
				if inner, exists := fields[parts[1]+parts[3]]; exists {
					next = append(next, inner)
				}
			}
		}
		found = next
	}
	return found
}
