package pilothouse

import (
	"encoding/json"
	"fmt"
	"time"
)

// ReadError says why a read from the cache failed.
type ReadError struct {
	// "not-granted", "invalid" or "too-large".
	Kind    string
	Message string
}

func (e *ReadError) Error() string { return e.Message }

// ClientError says why a request to the API server failed.
type ClientError struct {
	// "not-granted", "invalid", "api" or "unreachable".
	Kind    string
	Message string
	// The HTTP status code, if the API server rejected the request.
	Code int
	// The reason of Kubernetes in the contract's spelling, such as "not-found" or "conflict".
	Reason string
}

func (e *ClientError) Error() string { return e.Message }

// HTTPError says why no response arrived.
type HTTPError struct {
	// "not-granted", "invalid", "timeout", "unreachable", "too-large" or "too-many".
	Kind    string
	Message string
}

func (e *HTTPError) Error() string { return e.Message }

// Query selects objects of the cache.
type Query struct {
	Kind Kind
	// Empty means every granted namespace.
	Namespace string
	Labels    string
	// The name of an index, and the value to look up.
	Index, Value string
	Fields       []string
	After        string
}

// ClientCall is a request to the API server. Which members it has depends on the verb.
type ClientCall struct {
	// "get", "list", "create", "update", "patch", "apply", "delete", "evict" or "logs".
	Verb        string
	Kind        Kind
	Key         Key
	Subresource string
	// The object, or the body of a patch.
	Body json.RawMessage
	// "json", "merge" or "strategic-merge".
	PatchType string
	Force     bool
	// "background", "foreground" or "orphan".
	Propagation string
	// Preconditions of a deletion.
	UID, ResourceVersion string
	// Selectors and page of a list.
	Labels, Fields, After string
	// The container of logs.
	Container string
	TailLines uint32
}

// HTTPRequest is a request to a server outside the cluster's API.
type HTTPRequest struct {
	Method  string
	URL     string
	Headers map[string]string
	Body    []byte
	// 0 means 10 seconds.
	Timeout time.Duration
}

// HTTPResponse is the response of a server.
type HTTPResponse struct {
	Status int
	// Names are in lower case.
	Headers [][2]string
	Body    []byte
}

// ErrorForStatus returns an error unless the status is 2xx.
func (r *HTTPResponse) ErrorForStatus() error {
	if r.Status >= 200 && r.Status < 300 {
		return nil
	}
	return fmt.Errorf("the server answered with status %d", r.Status)
}

// Host is what a plugin can call: the contract's imports, or in a test, a mock.
type Host interface {
	// Get returns nil if there is no such object.
	Get(kind Kind, key Key) (json.RawMessage, error)
	// List returns a page, and where the next one begins. It ends with an empty text.
	List(query Query) ([]json.RawMessage, string, error)
	Keys(query Query) ([]Key, string, error)
	// Client returns the objects of the answer: one, those of a page, or none. Next is that of a page, or the text of logs.
	Client(call ClientCall) (objects []json.RawMessage, next string, err error)
	HTTP(request HTTPRequest) (*HTTPResponse, error)
	Log(level, message string, fields [][2]string)
	// Metric changes a metric. Change is "add", "set" or "observe".
	Metric(change, name string, labels []string, value float64)
	Now() time.Time
	Random(count int) []byte
}

var present Host

// SetHost sets the host of the calls that follow, and returns the one before. For mocks.
func SetHost(host Host) Host {
	before := present
	present = host
	return before
}

func host() Host {
	if present == nil {
		panic("there is no host: call this in a reconcile, and test it with a mock host")
	}
	return present
}
