package pilothouse

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// Event is an Event of Kubernetes, as `kubectl describe` shows it.
type Event struct {
	Warning bool
	// Why, in one word of UpperCamelCase.
	Reason string
	// One sentence for people.
	Message string
	// The object that it is about. Nil is the reconciled object.
	About *Reference
}

// Reference names one object of any kind.
type Reference struct {
	Kind Kind
	Key  Key
}

// Child is an object that should exist because the reconciled object exists, with settings.
type Child struct {
	Object any
	// True if the host may take over an existing object that this plugin did not create.
	Adopt bool
	// True if the host may delete the object and create it again, when a field is immutable.
	Replace bool
}

// Outcome is what should exist after a reconcile. An empty outcome changes nothing, and waits for the next change.
type Outcome struct {
	// The complete list of children: objects of any type, or a Child. The host deletes others that this plugin created for
	// the object. Nil leaves the children as they are, and an empty list deletes all.
	Children []any
	// The complete status. Nil leaves the status as it is.
	Status any
	// Until the next call, even if nothing changes.
	RequeueAfter time.Duration
	// Kinds that this key reads and that are known only at run time. Nil leaves them as they are.
	Watches []Watch
	// Written after the status. Context.Event adds to them.
	Events []Event
}

// Failure fails a reconcile with more than a message. Other errors have their message, and are retried.
type Failure struct {
	Message string
	// True to wait until the object or a child changes. False to retry with a growing delay.
	Terminal bool
	Status   any
	Events   []Event
}

func (f *Failure) Error() string { return f.Message }

// Terminal makes an error that is not retried: the host waits until the object or a child changes.
func Terminal(err error) error {
	if err == nil {
		return nil
	}
	return &Failure{Message: err.Error(), Terminal: true}
}

// WireChild is a child in the contract's form.
type WireChild struct {
	Kind   Kind
	Key    Key
	Object json.RawMessage
	Adopt  bool
	// As in Child.
	Replace bool
}

// Result is an outcome or a failure in the contract's form.
type Result struct {
	// Nil leaves the children as they are.
	Children     []WireChild
	Status       json.RawMessage
	RequeueAfter time.Duration
	Watches      []Watch
	Events       []Event
	// Nil if the reconcile succeeded.
	Failure *Failure
}

func (o *Outcome) result() (Result, error) {
	result := Result{RequeueAfter: o.RequeueAfter, Watches: o.Watches, Events: o.Events}
	if o.Children != nil {
		result.Children = []WireChild{}
	}
	for _, entry := range o.Children {
		child, isChild := entry.(Child)
		if !isChild {
			child = Child{Object: entry}
		}
		kind, key, text, err := identity(child.Object)
		if err != nil {
			return Result{}, fmt.Errorf("a child is not valid: %w", err)
		}
		if key.Name == "" {
			return Result{}, fmt.Errorf("a child of kind %s has no `metadata.name`", kind)
		}
		result.Children = append(result.Children, WireChild{kind, key, text, child.Adopt, child.Replace})
	}
	if o.RequeueAfter < 0 {
		return Result{}, fmt.Errorf("`RequeueAfter` is negative: %s", o.RequeueAfter)
	}
	status, err := encoded(o.Status)
	if err != nil {
		return Result{}, fmt.Errorf("the status cannot be encoded: %w", err)
	}
	result.Status = status
	return result, nil
}

func encoded(value any) (json.RawMessage, error) {
	if value == nil {
		return nil, nil
	}
	return json.Marshal(value)
}

func failed(err error, events []Event) Result {
	failure := &Failure{}
	if !errors.As(err, &failure) {
		failure = &Failure{Message: err.Error()}
	} else {
		// The message of an error that wraps it says more.
		failure = &Failure{err.Error(), failure.Terminal, failure.Status, failure.Events}
	}
	status, problem := encoded(failure.Status)
	if problem != nil {
		failure.Message += fmt.Sprintf(" (and the status cannot be encoded: %s)", problem)
	}
	return Result{Failure: failure, Status: status, Events: append(events, failure.Events...)}
}
