// Command probe prints, reads the clock, draws random numbers, and fails in the way that the object asks for.
package main

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"os"
	"time"

	"pilothouse.dev/pilothouse-go"
)

type configMap struct {
	pilothouse.Object
	Data map[string]string `json:"data"`
}

func init() {
	pilothouse.ServeConfigured(func(json.RawMessage) (pilothouse.Plugin, error) {
		fmt.Println("described at", time.Now())
		maps := pilothouse.Controller[configMap]{For: "v1/ConfigMap", Name: "maps", WithoutStatus: true, Reconcile: reconcile}
		return pilothouse.Plugin{Description: "A probe in Go.", Controllers: []pilothouse.Loop{maps}}, nil
	})
}

func reconcile(_ *pilothouse.Context, object *configMap) (*pilothouse.Outcome, error) {
	name, found := object.Data["probe"]
	if !found {
		return nil, nil
	}
	fmt.Fprintln(os.Stderr, "a warning")
	switch object.Data["fail"] {
	case "returned":
		return nil, errors.New("no pears left")
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
	return nil, nil
}

func main() {}
