package main

import (
	"testing"

	"pilothouse.dev/pilothouse-go"
	"pilothouse.dev/pilothouse-go/mock"
)

var key = pilothouse.Key{Namespace: "default", Name: "first"}

func first() pilothouse.Dynamic {
	return pilothouse.Dynamic{
		"apiVersion": "{{group}}/{{version}}",
		"kind":       "{{kind}}",
		"metadata":   pilothouse.Dynamic{"name": key.Name, "namespace": key.Namespace},
		"spec":       pilothouse.Dynamic{"message": "hello"},
	}
}

func TestAnObjectGivesAConfigMap(t *testing.T) {
	outcome, err := mock.New(t, first()).Reconcile(key.Namespace, key.Name)
	if err != nil {
		t.Fatal(err)
	}
	if len(outcome.Children) != 1 || outcome.Children[0].Kind != "v1/ConfigMap" {
		t.Errorf("the children are %v", outcome.Children)
	}
}

func TestTheConfigMapHasTheMessage(t *testing.T) {
	host := mock.New(t, first())
	if _, err := host.Settle(key.Namespace, key.Name); err != nil {
		t.Fatal(err)
	}
	data, _ := host.Find("v1/ConfigMap", key)["data"].(map[string]any)
	if data["message"] != "hello" {
		t.Errorf("the ConfigMap has %v", data)
	}
}
