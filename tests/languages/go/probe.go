// Package export_pilothouse_plugin_controller prints, reads the clock, draws random numbers, and fails in the way that
// the object asks for.
package export_pilothouse_plugin_controller

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	mathrand "math/rand/v2"
	"os"
	"time"

	. "go.bytecodealliance.org/pkg/wit/types"
	. "wit_component/pilothouse_plugin_controller"
	"wit_component/pilothouse_plugin_types"
)

var configMaps = pilothouse_plugin_types.TypeMeta{ApiVersion: "v1", Kind: "ConfigMap"}

func watch(of pilothouse_plugin_types.TypeMeta) Watch {
	return Watch{Of: of, Labels: None[string](), Fields: None[string]()}
}

func Describe(config string) Result[Manifest, string] {
	fmt.Println("described at", time.Now())
	maps := Controller{
		Name:           "maps",
		For:            watch(configMaps),
		MaxConcurrency: 1,
		ResyncSeconds:  None[uint32](),
		TimeoutMs:      None[uint32](),
		Finalizer:      None[string](),
	}
	return Ok[Manifest, string](Manifest{
		Version:      "0.1.0",
		Description:  "A probe in Go.",
		Controllers:  []Controller{maps},
		Permissions:  []Permission{{Of: configMaps, Subresource: None[uint8](), Verbs: []Verb{Verb_Read}}},
		ConfigSchema: None[string](),
		Instances:    InstancePolicy_Fresh,
	})
}

func Reconcile(config string, request Request) Result[Outcome, Failure] {
	unchanged := Outcome{
		Children:     MakeChildrenUnchanged(),
		Status:       None[string](),
		RequeueAfter: None[uint64](),
		Watches:      MakeWatchesUnchanged(),
	}
	var object struct{ Data map[string]string }
	if err := json.Unmarshal([]byte(request.Object), &object); err != nil {
		return Err[Outcome, Failure](Failure{Message: err.Error(), Terminal: true, Status: None[string]()})
	}
	name, found := object.Data["probe"]
	if !found {
		return Ok[Outcome, Failure](unchanged)
	}
	fmt.Fprintln(os.Stderr, "a warning")
	switch object.Data["fail"] {
	case "returned":
		return Err[Outcome, Failure](Failure{Message: "no pears left", Status: None[string]()})
	case "thrown":
		panic("no apples left")
	}
	before := time.Now()
	time.Sleep(time.Hour)
	_, err := os.ReadFile("/etc/passwd")
	result, _ := json.Marshal(map[string]any{
		"time":   float64(time.Now().UnixMilli()) / 1000,
		"slept":  time.Since(before).Seconds(),
		"unique": rand.Text(),
		"random": mathrand.Float64(),
		"files":  fmt.Sprint(err),
	})
	fmt.Printf("result of %s: %s\n", name, result)
	return Ok[Outcome, Failure](unchanged)
}
