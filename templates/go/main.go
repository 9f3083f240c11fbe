// Command {{name}} keeps a ConfigMap with the message of each {{kind}}.
package main

import "pilothouse.dev/pilothouse-go"

const (
	kind          = "{{group}}/{{version}}/{{kind}}"
	configMapKind = "v1/ConfigMap"
)

// {{kind}} says which message is kept.
type {{kind}} struct {
	pilothouse.Object
	Spec struct {
		Message string `json:"message"`
	} `json:"spec"`
	Status {{kind}}Status `json:"status"`
}

// {{kind}}Status says whether it is kept.
type {{kind}}Status struct {
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
		Description: "Keeps a ConfigMap with the message of each {{kind}}.",
		CRDs: []any{pilothouse.CRD{
			Kind:     kind,
			Plural:   "{{plural}}",
			Singular: "{{singular}}",
			Spec:     map[string]pilothouse.Schema{"message": {"type": "string"}},
			Required: []string{"message"},
			Status: map[string]pilothouse.Schema{
				"observedGeneration": {"type": "integer"},
				"conditions":         pilothouse.Conditions(),
			},
			Columns: []pilothouse.Column{{Name: "Message", Path: ".spec.message"}},
		}},
		Controllers: []pilothouse.Loop{pilothouse.Controller[{{kind}}]{
			For:       kind,
			Owns:      pilothouse.Kinds(configMapKind),
			Reconcile: reconcile,
		}},
	})
}

// reconcile returns what should exist because of the object. It changes nothing itself.
func reconcile(ctx *pilothouse.Context, object *{{kind}}) (*pilothouse.Outcome, error) {
	message := object.Spec.Message
	child := ConfigMap{Data: map[string]string{"message": message}}
	child.APIVersion, child.Kind, child.Metadata.Name = "v1", "ConfigMap", ctx.Key.Name
	// The host runs this again when the result of a read changes.
	found, err := pilothouse.Get[ConfigMap](ctx, configMapKind, ctx.Key)
	if err != nil {
		return nil, err
	}
	ready, reason := found != nil && found.Data["message"] == message, "Progressing"
	if ready {
		reason = "Written"
	}
	ctx.Log.Debug("reconciled", "ready", ready)
	condition := ctx.Condition("Ready", ready, reason, "")
	return &pilothouse.Outcome{
		Children: []any{child},
		Status: {{kind}}Status{
			ObservedGeneration: object.Metadata.Generation,
			Conditions:         pilothouse.SetCondition(object.Status.Conditions, condition),
		},
	}, nil
}

// A component has no main function. Go's compiler wants one.
func main() {}
