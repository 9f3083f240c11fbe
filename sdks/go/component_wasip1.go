package pilothouse

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"time"

	"pilothouse.dev/pilothouse-go/internal/abi"
)

// The records of the contract, with their fields in its order.
type (
	wireKind struct{ APIVersion, Kind string }
	wireKey  struct {
		Namespace *string
		Name      string
	}
	wireTest      abi.Choice
	wireCondition struct {
		Test    wireTest
		Negated bool
	}
	wireWatch struct {
		Of           wireKind
		Except       []wireKind
		WithVerbs    []string
		Namespaces   []string
		Labels       *string
		Fields       *string
		MetadataOnly bool
		Without      []string
		Compressed   bool
		When         [][]wireCondition
	}
	wireMapping abi.Choice
	wireMapped  struct {
		Watch   wireWatch
		Mapping wireMapping
	}
	wireIndex struct {
		Name string
		Of   wireKind
		Path string
	}
	wireController struct {
		Name           string
		For            wireWatch
		Owns           []wireWatch
		Watches        []wireMapped
		Reads          []wireWatch
		MaxConcurrency uint32
		ResyncSeconds  *uint32
		TimeoutMs      *uint32
		Finalizer      *string
	}
	wirePermission struct {
		Of          wireKind
		Subresource *uint8
		Verbs       []uint8
		Namespaces  []string
		Names       []string
	}
	wireMetric struct {
		Name    string
		OfType  uint8
		Help    string
		Labels  []string
		Buckets []string
	}
	wireHTTP struct {
		Host    string
		Port    *uint16
		Plain   bool
		Methods []string
	}
	// No webhook is ever written. A list of any type has the same form if it is empty.
	wireWebhook  struct{ Name string }
	wireManifest struct {
		Version      string
		Description  string
		Controllers  []wireController
		Indexes      []wireIndex
		Observes     []wireWatch
		Permissions  []wirePermission
		CRDs         []string
		ConfigSchema *string
		Instances    uint8
		Metrics      []wireMetric
		HTTP         []wireHTTP
		Webhooks     []wireWebhook
	}
	wireChild struct {
		Object         string
		Adopt, Replace bool
	}
	wireChildren  abi.Choice
	wireWatches   abi.Choice
	wireReference struct {
		APIVersion, Kind string
		Namespace        *string
		Name             string
	}
	wireEvent struct {
		About           *wireReference
		OfType          uint8
		Reason, Message string
	}
	wireOutcome struct {
		Children     wireChildren
		Status       *string
		RequeueAfter *uint64
		Watches      wireWatches
		Events       []wireEvent
	}
	wireFailure struct {
		Message  string
		Terminal bool
		Status   *string
		Events   []wireEvent
	}
	wireQuery struct {
		Of        wireKind
		Namespace *string
		Labels    *string
		Index     *[2]string
		Fields    []string
		Limit     uint32
		After     *string
	}
	wirePage struct {
		Items []string
		Next  *string
	}
	wireKeyPage struct {
		Items []wireKey
		Next  *string
	}
	wireListQuery struct {
		Of                        wireKind
		Namespace, Labels, Fields *string
		Limit                     uint32
		After                     *string
	}
	wireStatus struct {
		Code    uint16
		Reason  uint8
		Message string
		Causes  [][2]string
	}
	wireReadError   abi.Choice
	wireClientError abi.Choice
	wireHTTPError   abi.Choice
	wireResponse    struct {
		Status  uint16
		Headers [][2]string
		Body    []uint8
	}
)

var text = reflect.TypeFor[string]()

func (wireTest) Cases() []reflect.Type {
	return []reflect.Type{nil, nil, nil, nil, nil, nil, text}
}

func (wireMapping) Cases() []reflect.Type {
	return []reflect.Type{nil, nil, nil, text, text, nil}
}

func (wireChildren) Cases() []reflect.Type {
	return []reflect.Type{nil, reflect.TypeFor[[]wireChild]()}
}

func (wireWatches) Cases() []reflect.Type {
	return []reflect.Type{nil, reflect.TypeFor[[]wireWatch]()}
}

func (wireReadError) Cases() []reflect.Type {
	return []reflect.Type{text, text, reflect.TypeFor[uint64]()}
}

func (wireClientError) Cases() []reflect.Type {
	return []reflect.Type{text, text, reflect.TypeFor[wireStatus](), text}
}

func (wireHTTPError) Cases() []reflect.Type {
	return []reflect.Type{text, text, nil, text, nil, nil}
}

// The cases of enumerations, in the contract's order.
var (
	verbs        = []string{"read", "create", "update", "patch", "apply", "delete"}
	tests        = []string{"generation", "labels", "annotations", "finalizers", "deletion", "resource-version", "cel"}
	mappings     = []string{"owner", "any-owner", "same-key", "label", "index", "plugin"}
	subresources = []string{"status", "scale", "eviction", "log", "approval", "ephemeral-containers", "resize"}
	metricTypes  = []string{"counter", "gauge", "histogram"}
	levels       = []string{"error", "warn", "info", "debug", "trace"}
	propagations = []string{"background", "foreground", "orphan"}
	patchTypes   = []string{"json", "merge", "strategic-merge"}
	phases       = []string{"live", "deleting", "gone"}
	reasons      = []string{
		"bad-request", "unauthorized", "forbidden", "not-found", "already-exists", "conflict", "gone", "invalid", "timeout",
		"too-many-requests", "service-unavailable", "internal-error", "other",
	}
)

// caseOf returns the number of a case. It panics with a message for the author if there is none.
func caseOf(what string, cases []string, name string) uint8 {
	at := slices.Index(cases, name)
	if at < 0 {
		panic(fmt.Errorf("there is no %s %q: it is one of %v", what, name, cases))
	}
	return uint8(at)
}

func optional(value string) *string {
	if value == "" {
		return nil
	}
	return &value
}

func optionalJSON(value json.RawMessage) *string { return optional(string(value)) }

func kindOf(kind Kind) wireKind {
	apiVersion, name, err := kind.Split()
	if err != nil {
		panic(err)
	}
	return wireKind{apiVersion, name}
}

func all[A, B any](values []A, of func(A) B) []B {
	converted := make([]B, len(values))
	for at, value := range values {
		converted[at] = of(value)
	}
	return converted
}

func watchOf(watch Watch) wireWatch {
	condition := func(test Test) wireCondition {
		choice := wireTest{Tag: caseOf("test", tests, test.Name)}
		if test.Name == "cel" {
			choice.Val = test.CEL
		}
		return wireCondition{choice, test.Negated}
	}
	conditions := func(tests []Test) []wireCondition { return all(tests, condition) }
	return wireWatch{
		Of: kindOf(watch.Kind), Namespaces: watch.Namespaces, Labels: optional(watch.Labels), Fields: optional(watch.Fields),
		MetadataOnly: watch.MetadataOnly, Without: watch.Without, Compressed: watch.Compressed, When: all(watch.When, conditions),
	}
}

func controllerOf(loop ControllerManifest) wireController {
	made := wireController{
		Name: loop.Name, For: watchOf(loop.For), Owns: all(loop.Owns, watchOf), Reads: all(loop.Reads, watchOf),
		MaxConcurrency: loop.MaxConcurrency, Finalizer: optional(loop.Finalizer),
	}
	made.Watches = all(loop.Watches, func(mapped MappedWatch) wireMapped {
		choice := wireMapping{Tag: caseOf("mapping", mappings, mapped.Mapping.Name)}
		if mapped.Mapping.Argument != "" {
			choice.Val = mapped.Mapping.Argument
		}
		return wireMapped{watchOf(mapped.Watch), choice}
	})
	if loop.Resync != 0 {
		// Rounded up: 0 is never.
		seconds := uint32(max(0, (loop.Resync+time.Second-1)/time.Second))
		made.ResyncSeconds = &seconds
	}
	if loop.Timeout != 0 {
		millis := uint32(loop.Timeout.Milliseconds())
		made.TimeoutMs = &millis
	}
	return made
}

func manifestOf(manifest Manifest) wireManifest {
	made := wireManifest{
		Version: manifest.Version, Description: manifest.Description, Controllers: all(manifest.Controllers, controllerOf),
		CRDs:         all(manifest.CRDs, func(crd json.RawMessage) string { return string(crd) }),
		ConfigSchema: optionalJSON(manifest.ConfigSchema),
	}
	made.Indexes = all(manifest.Indexes, func(index Index) wireIndex {
		return wireIndex{index.Name, kindOf(index.Kind), index.Path}
	})
	made.Permissions = all(manifest.Permissions, func(permission Permission) wirePermission {
		asked := wirePermission{Of: kindOf(permission.Kind), Namespaces: permission.Namespaces, Names: permission.Names}
		asked.Subresource = subresourceOf(permission.Subresource)
		asked.Verbs = all(permission.Verbs, func(verb Verb) uint8 { return caseOf("verb", verbs, string(verb)) })
		return asked
	})
	made.Metrics = all(manifest.Metrics, func(metric MetricManifest) wireMetric {
		le := func(bound float64) string { return strconv.FormatFloat(bound, 'g', -1, 64) }
		of := caseOf("metric", metricTypes, metric.Type)
		return wireMetric{metric.Name, of, metric.Help, metric.Labels, all(metric.Buckets, le)}
	})
	made.HTTP = all(manifest.HTTP, func(rule HTTPPermission) wireHTTP {
		asked := wireHTTP{Host: rule.Host, Plain: rule.Plain, Methods: rule.Methods}
		if rule.Port != 0 {
			asked.Port = &rule.Port
		}
		return asked
	})
	if manifest.Reuse {
		made.Instances = 1
	}
	return made
}

func subresourceOf(name string) *uint8 {
	if name == "" {
		return nil
	}
	found := caseOf("subresource", subresources, name)
	return &found
}

func eventOf(event Event) wireEvent {
	made := wireEvent{Reason: event.Reason, Message: event.Message}
	if event.Warning {
		made.OfType = 1
	}
	if event.About != nil {
		kind, key := kindOf(event.About.Kind), event.About.Key
		made.About = &wireReference{kind.APIVersion, kind.Kind, optional(key.Namespace), key.Name}
	}
	return made
}

func resultOf(result Result) abi.Result[wireOutcome, wireFailure] {
	events := all(result.Events, eventOf)
	status := optionalJSON(result.Status)
	if failure := result.Failure; failure != nil {
		return abi.Err[wireOutcome](wireFailure{failure.Message, failure.Terminal, status, events})
	}
	outcome := wireOutcome{Status: status, Events: events}
	if result.Children != nil {
		child := func(child WireChild) wireChild { return wireChild{string(child.Object), child.Adopt, child.Replace} }
		outcome.Children = wireChildren{1, all(result.Children, child)}
	}
	if result.RequeueAfter > 0 {
		millis := uint64(result.RequeueAfter.Milliseconds())
		outcome.RequeueAfter = &millis
	}
	if result.Watches != nil {
		outcome.Watches = wireWatches{1, all(result.Watches, watchOf)}
	}
	return abi.Ok[wireOutcome, wireFailure](outcome)
}

//go:wasmexport pilothouse:plugin/controller@0.1.0#describe
func describe(config, length uint32) (result uint32) {
	defer func() {
		if panicked := recover(); panicked != nil {
			result = abi.Store(abi.Err[wireManifest](fmt.Sprintf("panic: %v", panicked)))
		}
	}()
	plugin, err := Defined(json.RawMessage(abi.Text(config, length)))
	if err != nil {
		return abi.Store(abi.Err[wireManifest](err.Error()))
	}
	manifest, err := plugin.Manifest()
	if err != nil {
		return abi.Store(abi.Err[wireManifest](err.Error()))
	}
	return abi.Store(abi.Ok[wireManifest, string](manifestOf(manifest)))
}

//go:wasmexport cabi_post_pilothouse:plugin/controller@0.1.0#describe
func describeReturned(uint32) { abi.Free() }

//go:wasmexport pilothouse:plugin/controller@0.1.0#reconcile
func reconcile(
	config, configLength, controller, controllerLength, isNamespaced, namespace, namespaceLength, name, nameLength,
	object, objectLength, phase, attempt, isRepeated, lastError, lastErrorLength uint32,
) (result uint32) {
	SetHost(componentHost{})
	defer func() {
		// A panic in the author's code is recovered, and logged with its stack, in plugin.go. This is for the rest.
		if panicked := recover(); panicked != nil {
			failure := wireFailure{Message: fmt.Sprintf("panic: %v", panicked)}
			result = abi.Store(abi.Err[wireOutcome](failure))
		}
	}()
	request := Request{
		Controller: abi.Text(controller, controllerLength),
		Key:        Key{Name: abi.Text(name, nameLength)},
		Object:     json.RawMessage(abi.Text(object, objectLength)),
		Phase:      Phase(phases[phase]),
		Attempt:    int(attempt),
	}
	if isNamespaced != 0 {
		request.Key.Namespace = abi.Text(namespace, namespaceLength)
	}
	if isRepeated != 0 {
		request.LastError = abi.Text(lastError, lastErrorLength)
	}
	given := json.RawMessage(abi.Text(config, configLength))
	plugin, err := Defined(given)
	if err != nil {
		return abi.Store(resultOf(failed(err, nil)))
	}
	return abi.Store(resultOf(plugin.Reconcile(request, given)))
}

//go:wasmexport cabi_post_pilothouse:plugin/controller@0.1.0#reconcile
func reconcileReturned(uint32) { abi.Free() }

//go:wasmimport pilothouse:plugin/cache@0.1.0 get
func cacheGet(apiVersion, apiVersionLength, kind, kindLength, isNamespaced, namespace, namespaceLength, name, nameLength, result uint32)

//go:wasmimport pilothouse:plugin/cache@0.1.0 list
func cacheList(query, result uint32)

//go:wasmimport pilothouse:plugin/cache@0.1.0 keys
func cacheKeys(query, result uint32)

//go:wasmimport pilothouse:plugin/client@0.1.0 get
func clientGet(
	apiVersion, apiVersionLength, kind, kindLength, isNamespaced, namespace, namespaceLength, name, nameLength,
	hasPart, part, result uint32,
)

//go:wasmimport pilothouse:plugin/client@0.1.0 list
func clientList(query, result uint32)

//go:wasmimport pilothouse:plugin/client@0.1.0 create
func clientCreate(object, length, result uint32)

//go:wasmimport pilothouse:plugin/client@0.1.0 update
func clientUpdate(object, length, hasPart, part, result uint32)

//go:wasmimport pilothouse:plugin/client@0.1.0 patch
func clientPatch(
	apiVersion, apiVersionLength, kind, kindLength, isNamespaced, namespace, namespaceLength, name, nameLength,
	tag, body, length, hasPart, part, result uint32,
)

//go:wasmimport pilothouse:plugin/client@0.1.0 apply
func clientApply(object, length, hasPart, part, force, result uint32)

//go:wasmimport pilothouse:plugin/client@0.1.0 delete
func clientDelete(
	apiVersion, apiVersionLength, kind, kindLength, isNamespaced, namespace, namespaceLength, name, nameLength,
	propagation, hasUID, uid, uidLength, hasVersion, version, versionLength, result uint32,
)

//go:wasmimport pilothouse:plugin/client@0.1.0 evict
func clientEvict(
	isNamespaced, namespace, namespaceLength, name, nameLength, hasGrace, grace,
	hasUID, uid, uidLength, hasVersion, version, versionLength, result uint32,
)

//go:wasmimport pilothouse:plugin/client@0.1.0 logs
func clientLogs(
	isNamespaced, namespace, namespaceLength, name, nameLength, hasContainer, container, containerLength, previous,
	hasSince, since, hasTail, tail, timestamps, result uint32,
)

//go:wasmimport pilothouse:plugin/log@0.1.0 write
func logWrite(level, message, messageLength, fields, fieldsLength uint32)

//go:wasmimport pilothouse:plugin/clock@0.1.0 now
func clockNow() uint64

//go:wasmimport pilothouse:plugin/random@0.1.0 bytes
func randomBytes(count, result uint32)

//go:wasmimport pilothouse:plugin/metrics@0.1.0 add
func metricsAdd(name, nameLength, labels, labelsLength uint32, value float64)

//go:wasmimport pilothouse:plugin/metrics@0.1.0 set
func metricsSet(name, nameLength, labels, labelsLength uint32, value float64)

//go:wasmimport pilothouse:plugin/metrics@0.1.0 observe
func metricsObserve(name, nameLength, labels, labelsLength uint32, value float64)

//go:wasmimport pilothouse:plugin/http@0.1.0 send
func httpSend(
	method, methodLength, url, urlLength, headers, headersLength, body, bodyLength, hasTimeout, timeout, redirects, result uint32,
)

// componentHost is the host that runs this component.
type componentHost struct{}

func readError(choice wireReadError) error {
	switch choice.Tag {
	case 0:
		return &ReadError{"not-granted", fmt.Sprintf("cannot read the cache: %v", choice.Val)}
	case 2:
		message := fmt.Sprintf("an object of %v bytes is too large to be read as a whole: read some of its fields", choice.Val)
		return &ReadError{"too-large", message}
	default:
		return &ReadError{"invalid", fmt.Sprintf("the query is not valid: %v", choice.Val)}
	}
}

func clientError(choice wireClientError) error {
	switch choice.Tag {
	case 0:
		return &ClientError{Kind: "not-granted", Message: fmt.Sprintf("the request is not granted: %v", choice.Val)}
	case 2:
		status, _ := choice.Val.(wireStatus)
		reason := reasons[min(int(status.Reason), len(reasons)-1)]
		message := fmt.Sprintf("the API server rejected the request with %d %s: %s", status.Code, reason, status.Message)
		return &ClientError{"api", message, int(status.Code), reason}
	case 3:
		return &ClientError{Kind: "unreachable", Message: fmt.Sprintf("the API server did not answer: %v", choice.Val)}
	default:
		return &ClientError{Kind: "invalid", Message: fmt.Sprintf("the request is not valid: %v", choice.Val)}
	}
}

func httpError(choice wireHTTPError) error {
	kinds := []string{"not-granted", "invalid", "timeout", "unreachable", "too-large", "too-many"}
	messages := []string{
		"the request is not granted: %v", "the request is not valid: %v", "the server did not answer in time",
		"the server cannot be reached: %v", "the response has more than 4 MiB", "the plugin sends too many requests",
	}
	message := messages[choice.Tag]
	if choice.Val != nil {
		message = fmt.Sprintf(message, choice.Val)
	}
	return &HTTPError{kinds[choice.Tag], message}
}

// place is a kind and a key as arguments of an import.
type place struct{ a, al, k, kl, some, ns, nsl, n, nl uint32 }

func placeOf(kind Kind, key Key) (p place) {
	of := kindOf(kind)
	p.a, p.al = abi.String(of.APIVersion)
	p.k, p.kl = abi.String(of.Kind)
	p.some, p.ns, p.nsl = abi.Option(optional(key.Namespace))
	p.n, p.nl = abi.String(key.Name)
	return p
}

func (componentHost) Get(kind Kind, key Key) (json.RawMessage, error) {
	type answer = abi.Result[*string, wireReadError]
	p, area := placeOf(kind, key), abi.Area[answer]()
	cacheGet(p.a, p.al, p.k, p.kl, p.some, p.ns, p.nsl, p.n, p.nl, area)
	loaded := abi.Load[answer](area)
	if loaded.Tag != 0 {
		return nil, readError(loaded.Val.(wireReadError))
	}
	found := loaded.Val.(*string)
	if found == nil {
		return nil, nil
	}
	return json.RawMessage(*found), nil
}

func queryOf(query Query) uint32 {
	asked := wireQuery{
		Of: kindOf(query.Kind), Namespace: optional(query.Namespace), Labels: optional(query.Labels), Fields: query.Fields,
		After: optional(query.After),
	}
	if query.Index != "" {
		asked.Index = &[2]string{query.Index, query.Value}
	}
	return abi.Store(asked)
}

func value(text *string) string {
	if text == nil {
		return ""
	}
	return *text
}

func raw(text string) json.RawMessage { return json.RawMessage(text) }

func (componentHost) List(query Query) ([]json.RawMessage, string, error) {
	type answer = abi.Result[wirePage, wireReadError]
	area := abi.Area[answer]()
	cacheList(queryOf(query), area)
	loaded := abi.Load[answer](area)
	if loaded.Tag != 0 {
		return nil, "", readError(loaded.Val.(wireReadError))
	}
	page := loaded.Val.(wirePage)
	return all(page.Items, raw), value(page.Next), nil
}

func (componentHost) Keys(query Query) ([]Key, string, error) {
	type answer = abi.Result[wireKeyPage, wireReadError]
	area := abi.Area[answer]()
	cacheKeys(queryOf(query), area)
	loaded := abi.Load[answer](area)
	if loaded.Tag != 0 {
		return nil, "", readError(loaded.Val.(wireReadError))
	}
	page := loaded.Val.(wireKeyPage)
	return all(page.Items, func(key wireKey) Key { return Key{value(key.Namespace), key.Name} }), value(page.Next), nil
}

func (componentHost) Client(call ClientCall) ([]json.RawMessage, string, error) {
	type (
		object  = abi.Result[string, wireClientError]
		page    = abi.Result[wirePage, wireClientError]
		nothing = abi.Result[struct{}, wireClientError]
	)
	p := placeOf(call.Kind, call.Key)
	var hasPart, part uint32
	if found := subresourceOf(call.Subresource); found != nil {
		hasPart, part = 1, uint32(*found)
	}
	body, length := abi.String(string(call.Body))
	hasUID, uid, uidLength := abi.Option(optional(call.UID))
	hasVersion, version, versionLength := abi.Option(optional(call.ResourceVersion))
	area := abi.Area[page]()
	switch call.Verb {
	case "get":
		clientGet(p.a, p.al, p.k, p.kl, p.some, p.ns, p.nsl, p.n, p.nl, hasPart, part, area)
	case "create":
		clientCreate(body, length, area)
	case "update":
		clientUpdate(body, length, hasPart, part, area)
	case "patch":
		tag := uint32(caseOf("patch type", patchTypes, call.PatchType))
		clientPatch(p.a, p.al, p.k, p.kl, p.some, p.ns, p.nsl, p.n, p.nl, tag, body, length, hasPart, part, area)
	case "apply":
		var force uint32
		if call.Force {
			force = 1
		}
		clientApply(body, length, hasPart, part, force, area)
	case "list":
		clientList(abi.Store(wireListQuery{
			Of: kindOf(call.Kind), Namespace: optional(call.Key.Namespace), Labels: optional(call.Labels),
			Fields: optional(call.Fields), After: optional(call.After),
		}), area)
		loaded := abi.Load[page](area)
		if loaded.Tag != 0 {
			return nil, "", clientError(loaded.Val.(wireClientError))
		}
		found := loaded.Val.(wirePage)
		return all(found.Items, raw), value(found.Next), nil
	case "delete", "evict":
		if call.Verb == "delete" {
			propagation := uint32(caseOf("propagation", propagations, call.Propagation))
			clientDelete(p.a, p.al, p.k, p.kl, p.some, p.ns, p.nsl, p.n, p.nl, propagation,
				hasUID, uid, uidLength, hasVersion, version, versionLength, area)
		} else {
			clientEvict(p.some, p.ns, p.nsl, p.n, p.nl, 0, 0, hasUID, uid, uidLength, hasVersion, version, versionLength, area)
		}
		if loaded := abi.Load[nothing](area); loaded.Tag != 0 {
			return nil, "", clientError(loaded.Val.(wireClientError))
		}
		return nil, "", nil
	case "logs":
		has, container, containerLength := abi.Option(optional(call.Container))
		hasTail := min(call.TailLines, 1)
		clientLogs(p.some, p.ns, p.nsl, p.n, p.nl, has, container, containerLength, 0, 0, 0, hasTail, call.TailLines, 0, area)
	default:
		return nil, "", fmt.Errorf("there is no request %q", call.Verb)
	}
	loaded := abi.Load[object](area)
	if loaded.Tag != 0 {
		return nil, "", clientError(loaded.Val.(wireClientError))
	}
	answer := loaded.Val.(string)
	if call.Verb == "logs" {
		return nil, answer, nil
	}
	return []json.RawMessage{json.RawMessage(answer)}, "", nil
}

func (componentHost) HTTP(request HTTPRequest) (*HTTPResponse, error) {
	type answer = abi.Result[wireResponse, wireHTTPError]
	var pairs [][2]string
	for name, value := range request.Headers {
		pairs = append(pairs, [2]string{name, value})
	}
	// A list in a record: its address and its length.
	lists := abi.Load[[4]uint32](abi.Store(struct {
		Headers [][2]string
		Body    []uint8
	}{pairs, request.Body}))
	method, methodLength := abi.String(request.Method)
	url, urlLength := abi.String(request.URL)
	millis := uint32(request.Timeout.Milliseconds())
	area := abi.Area[answer]()
	const redirects = 5
	httpSend(method, methodLength, url, urlLength, lists[0], lists[1], lists[2], lists[3], min(millis, 1), millis, redirects, area)
	loaded := abi.Load[answer](area)
	if loaded.Tag != 0 {
		return nil, httpError(loaded.Val.(wireHTTPError))
	}
	response := loaded.Val.(wireResponse)
	return &HTTPResponse{int(response.Status), response.Headers, response.Body}, nil
}

func (componentHost) Log(level, message string, fields [][2]string) {
	at, length := abi.String(message)
	list := abi.Load[[2]uint32](abi.Store(fields))
	logWrite(uint32(caseOf("level", levels, level)), at, length, list[0], list[1])
}

func (componentHost) Metric(change, name string, labels []string, by float64) {
	at, length := abi.String(name)
	list := abi.Load[[2]uint32](abi.Store(labels))
	switch change {
	case "add":
		metricsAdd(at, length, list[0], list[1], by)
	case "set":
		metricsSet(at, length, list[0], list[1], by)
	default:
		metricsObserve(at, length, list[0], list[1], by)
	}
}

func (componentHost) Now() time.Time { return time.UnixMilli(int64(clockNow())).UTC() }

func (componentHost) Random(count int) []byte {
	area := abi.Area[[]uint8]()
	randomBytes(uint32(count), area)
	return abi.Load[[]uint8](area)
}
