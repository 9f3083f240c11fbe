package main

import (
	"errors"
	"testing"

	"pilothouse.dev/pilothouse-go"
	"pilothouse.dev/pilothouse-go/mock"
)

var greeting = pilothouse.Key{Namespace: "default", Name: "morning-greeting"}

func hello(to string) pilothouse.Dynamic {
	return pilothouse.Dynamic{
		"apiVersion": "example.com/v1",
		"kind":       "Hello",
		"metadata":   pilothouse.Dynamic{"name": "morning", "namespace": "default"},
		"spec":       pilothouse.Dynamic{"to": to},
	}
}

func textOf(object pilothouse.Dynamic) any {
	data, _ := object["data"].(map[string]any)
	return data["text"]
}

func TestAHelloGivesAConfigMapAndAStatus(t *testing.T) {
	host := mock.New(t, hello("world"))
	if _, err := host.Settle("default", "morning"); err != nil {
		t.Fatal(err)
	}
	if text := textOf(host.Find("v1/ConfigMap", greeting)); text != "Hello, world!" {
		t.Errorf("the ConfigMap says %q", text)
	}
	if len(host.Events) != 1 || host.Events[0].Reason != "Greeted" {
		t.Errorf("the Events are %v", host.Events)
	}
}

func TestAChangedConfigMapIsSetBack(t *testing.T) {
	host := mock.New(t, hello("world"))
	for range 2 {
		if _, err := host.Settle("default", "morning"); err != nil {
			t.Fatal(err)
		}
		changed := host.Find("v1/ConfigMap", greeting)
		if text := textOf(changed); text != "Hello, world!" {
			t.Errorf("the ConfigMap says %q", text)
		}
		changed["data"] = map[string]any{"text": "Bye"}
		host.Put(changed)
	}
}

func TestNobodyIsAnErrorThatWaitsForAChange(t *testing.T) {
	_, err := mock.New(t, hello("nobody")).Reconcile("default", "morning")
	var failure *pilothouse.Failure
	if !errors.As(err, &failure) || !failure.Terminal {
		t.Errorf("the error is %v", err)
	}
}
