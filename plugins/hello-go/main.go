// Command hello-go greets everybody that a Hello names: a ConfigMap with the greeting, and a status.
package main

import (
	"errors"

	"pilothouse.dev/pilothouse-go"
)

const (
	helloKind     = "example.com/v1/Hello"
	configMapKind = "v1/ConfigMap"
)

// Hello says whom to greet.
type Hello struct {
	pilothouse.Object
	Spec struct {
		To string `json:"to"`
	} `json:"spec"`
	Status HelloStatus `json:"status"`
}

// HelloStatus says what was written.
type HelloStatus struct {
	Greeting           string                 `json:"greeting"`
	ObservedGeneration int64                  `json:"observedGeneration"`
	Conditions         []pilothouse.Condition `json:"conditions"`
}

// ConfigMap is a ConfigMap, as far as this plugin needs it.
type ConfigMap struct {
	pilothouse.Object
	Data map[string]string `json:"data"`
}

func init() {
	pilothouse.Serve(pilothouse.Plugin{
		Description: "Greets everybody that a Hello names.",
		CRDs: []any{pilothouse.CRD{
			Kind:     helloKind,
			Plural:   "hellos",
			Spec:     map[string]pilothouse.Schema{"to": {"type": "string", "minLength": 1}},
			Required: []string{"to"},
			Status: map[string]pilothouse.Schema{
				"greeting":           {"type": "string"},
				"observedGeneration": {"type": "integer"},
				"conditions":         pilothouse.Conditions(),
			},
			Columns: []pilothouse.Column{{Name: "Greeting", Path: ".status.greeting"}},
		}},
		Controllers: []pilothouse.Loop{pilothouse.Controller[Hello]{
			For:       helloKind,
			Owns:      pilothouse.Kinds(configMapKind),
			Events:    true,
			Reconcile: reconcile,
		}},
	})
}

func reconcile(ctx *pilothouse.Context, hello *Hello) (*pilothouse.Outcome, error) {
	if hello.Spec.To == "nobody" {
		return nil, pilothouse.Terminal(errors.New("there is nobody to greet"))
	}
	text, name := "Hello, "+hello.Spec.To+"!", ctx.Key.Name+"-greeting"
	greeting := ConfigMap{
		Object: pilothouse.Object{APIVersion: "v1", Kind: "ConfigMap", Metadata: pilothouse.ObjectMeta{Name: name}},
		Data:   map[string]string{"text": text},
	}
	written, err := pilothouse.Get[ConfigMap](ctx, configMapKind, ctx.Beside(name))
	if err != nil {
		return nil, err
	}
	ready, reason := written != nil && written.Data["text"] == text, "Progressing"
	if ready {
		reason = "Written"
	}
	if hello.Status.Greeting != text {
		ctx.Event(pilothouse.Event{Reason: "Greeted", Message: text})
	}
	condition := ctx.Condition("Ready", ready, reason, "")
	return &pilothouse.Outcome{
		Children: []any{greeting},
		Status: HelloStatus{
			Greeting:           text,
			ObservedGeneration: hello.Metadata.Generation,
			Conditions:         pilothouse.SetCondition(hello.Status.Conditions, condition),
		},
	}, nil
}

// A component has no main function. Go's compiler wants one.
func main() {}
