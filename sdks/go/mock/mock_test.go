package mock_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"pilothouse.dev/pilothouse-go"
	"pilothouse.dev/pilothouse-go/mock"
)

type site struct {
	pilothouse.Object
	Spec struct{ Names []string }
}

type controller = pilothouse.Controller[site]

func object(kind, name string, more pilothouse.Dynamic) pilothouse.Dynamic {
	made := pilothouse.Dynamic{
		"apiVersion": "v1", "kind": kind, "metadata": pilothouse.Dynamic{"name": name, "namespace": "shop"},
	}
	for field, value := range more {
		made[field] = value
	}
	return made
}

func siteNamed(names ...string) pilothouse.Dynamic {
	return object("Site", "web", pilothouse.Dynamic{"apiVersion": "example.com/v1", "spec": pilothouse.Dynamic{"names": names}})
}

func serving(loop controller, reconcile func(*pilothouse.Context, *site) (*pilothouse.Outcome, error)) pilothouse.Plugin {
	loop.For, loop.Reconcile = "example.com/v1/Site", reconcile
	return pilothouse.Plugin{Description: "A test.", Controllers: []pilothouse.Loop{loop}}
}

func TestAControllerAsksForWhatItNeeds(t *testing.T) {
	plugin := serving(controller{
		Owns: pilothouse.Kinds("v1/ConfigMap"), Reads: pilothouse.Kinds("v1/Secret"), Finalizer: "example.com/f", Events: true,
	}, nil)
	manifest, err := plugin.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	var asked []string
	for _, permission := range manifest.Permissions {
		asked = append(asked, fmt.Sprint(permission.Kind, permission.Verbs, permission.Subresource))
	}
	wanted := []string{
		"example.com/v1/Site[read]", "example.com/v1/Site[apply]status", "example.com/v1/Site[patch]", "v1/Event[create]",
		"v1/ConfigMap[read apply delete]", "v1/Secret[read]",
	}
	if !reflect.DeepEqual(asked, wanted) {
		t.Errorf("it asks for %v", asked)
	}
}

func helper(numbers []int) int { return numbers[3] }

func TestAPanicIsToldWithItsStack(t *testing.T) {
	host := mock.For(t, serving(controller{}, func(*pilothouse.Context, *site) (*pilothouse.Outcome, error) {
		helper(nil)
		return nil, nil
	}), siteNamed())
	_, err := host.Reconcile("shop", "web")
	if err == nil {
		t.Fatal("it succeeds")
	}
	shape := regexp.MustCompile(`^panic: runtime error: index out of range.*, at mock_test.go:\d+ in mock_test.helper, at mock_test.go:\d+ in `)
	if !shape.MatchString(err.Error()) || strings.Contains(err.Error(), "plugin.go") {
		t.Errorf("the error is %s", err)
	}
	if len(host.Lines) != 1 || host.Lines[0].Level != "error" || !strings.Contains(host.Lines[0].Message, "helper(") {
		t.Errorf("the log is %v", host.Lines)
	}
}

func TestAWrappedFailureKeepsWhatItCarries(t *testing.T) {
	host := mock.For(t, serving(controller{Events: true}, func(ctx *pilothouse.Context, _ *site) (*pilothouse.Outcome, error) {
		ctx.Event(pilothouse.Event{Reason: "Tried", Message: "once"})
		return nil, fmt.Errorf("outer: %w", pilothouse.Terminal(errors.New("inner")))
	}), siteNamed())
	result, err := host.Reconcile("shop", "web")
	if err == nil || err.Error() != "outer: inner" || !result.Failure.Terminal || len(host.Events) != 1 {
		t.Errorf("the result is %+v", result)
	}
}

func TestReadsAreRefusedUnlessTheyAreDeclaredAndGranted(t *testing.T) {
	read := func(ctx *pilothouse.Context, _ *site) (*pilothouse.Outcome, error) {
		_, err := pilothouse.Get[pilothouse.Dynamic](ctx, "v1/Secret", ctx.Beside("t"))
		return nil, err
	}
	_, err := mock.For(t, serving(controller{}, read), siteNamed()).Reconcile("shop", "web")
	if err == nil || !strings.Contains(err.Error(), "v1/Secret is not cached: add it to `Reads`") {
		t.Errorf("the error is %v", err)
	}
	host := mock.For(t, serving(controller{Reads: pilothouse.Kinds("v1/Secret")}, read), siteNamed())
	if _, err := host.Reconcile("shop", "web"); err != nil {
		t.Errorf("the error is %v", err)
	}
	host.Refuse(pilothouse.Read, "v1/Secret")
	if _, err := host.Reconcile("shop", "web"); err == nil || !strings.Contains(err.Error(), "is not granted") {
		t.Errorf("the error is %v", err)
	}
}

func TestAListSelectsByLabelsAndIndex(t *testing.T) {
	var labelled, indexed []string
	plugin := serving(controller{Reads: pilothouse.Kinds("v1/Pod")}, func(ctx *pilothouse.Context, _ *site) (*pilothouse.Outcome, error) {
		keys, err := ctx.Keys("v1/Pod", pilothouse.ListOptions{Labels: "app in (web)"})
		if err != nil {
			return nil, err
		}
		for _, key := range keys {
			labelled = append(labelled, key.String())
		}
		pods, err := pilothouse.List[pilothouse.Object](ctx, "v1/Pod", pilothouse.ListOptions{Index: "by-node", Value: "n2"})
		for _, pod := range pods {
			indexed = append(indexed, pod.Metadata.Name)
		}
		return nil, err
	})
	plugin.Indexes = []pilothouse.Index{{Name: "by-node", Kind: "v1/Pod", Path: "spec.nodeName"}}
	labels := pilothouse.Dynamic{"name": "a", "namespace": "shop", "labels": map[string]string{"app": "web"}}
	host := mock.For(t, plugin, siteNamed(), object("Pod", "a", pilothouse.Dynamic{"metadata": labels}),
		object("Pod", "b", pilothouse.Dynamic{"spec": pilothouse.Dynamic{"nodeName": "n2"}}))
	if _, err := host.Reconcile("shop", "web"); err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(labelled, indexed) != "[shop/a] [b]" {
		t.Errorf("it found %v and %v", labelled, indexed)
	}
}

func TestRequestsAreRefusedUnlessTheyAreGrantedAndThenRecorded(t *testing.T) {
	plugin := serving(controller{}, func(ctx *pilothouse.Context, _ *site) (*pilothouse.Outcome, error) {
		return nil, ctx.Client().Delete("v1/Pod", ctx.Beside("old"))
	})
	if _, err := mock.For(t, plugin, siteNamed()).Reconcile("shop", "web"); err == nil {
		t.Error("it is not refused")
	}
	plugin.Permissions = []pilothouse.Permission{{Kind: "v1/Pod", Verbs: []pilothouse.Verb{pilothouse.Delete}}}
	host := mock.For(t, plugin, siteNamed(), object("Pod", "old", nil))
	if _, err := host.Reconcile("shop", "web"); err != nil {
		t.Fatal(err)
	}
	if len(host.Calls) != 1 || host.Find("v1/Pod", pilothouse.Key{Namespace: "shop", Name: "old"}) != nil {
		t.Errorf("the calls are %v", host.Calls)
	}
}

func TestSettlingWritesChildrenAndDeletesThoseThatAreNoLongerListed(t *testing.T) {
	reconcile := func(_ *pilothouse.Context, site *site) (*pilothouse.Outcome, error) {
		children := []any{}
		for _, name := range site.Spec.Names {
			children = append(children, object("ConfigMap", name, nil))
		}
		return &pilothouse.Outcome{Children: children, Status: map[string]bool{"ok": true}}, nil
	}
	host := mock.For(t, serving(controller{Owns: pilothouse.Kinds("v1/ConfigMap")}, reconcile), siteNamed("a", "b"))
	a := pilothouse.Key{Namespace: "shop", Name: "a"}
	if _, err := host.Settle("shop", "web"); err != nil || host.Find("v1/ConfigMap", a) == nil {
		t.Fatalf("there is no child: %v", err)
	}
	host.Put(siteNamed("b"))
	if _, err := host.Settle("shop", "web"); err != nil || host.Find("v1/ConfigMap", a) != nil {
		t.Errorf("the child is left: %v", err)
	}
}

func TestLabelSelectorsMatchAsInKubernetes(t *testing.T) {
	for selector, wanted := range map[string]bool{
		"": true, "app=web": true, "app==web,tier!=cache": true, "app!=web": false, "app in (web, api)": true,
		"app notin (web)": false, "missing notin (a)": true, "app": true, "!app": false, "!missing,app": true,
	} {
		if holds, err := mock.Matches(selector, map[string]any{"app": "web"}); err != nil || holds != wanted {
			t.Errorf("%q: %v, %v", selector, holds, err)
		}
	}
	if _, err := mock.Matches("a b", nil); err == nil {
		t.Error("a selector that is none is accepted")
	}
}

func TestFieldPathsReachListsAndQuotedNames(t *testing.T) {
	var pod any
	text := `{"spec":{"volumes":[{"configMap":{"name":"a"}},{"secret":{}}]},"metadata":{"labels":{"x.io/y":"z"}}}`
	if err := json.Unmarshal([]byte(text), &pod); err != nil {
		t.Fatal(err)
	}
	found := fmt.Sprint(mock.Values(pod, "spec.volumes[*].configMap.name"), mock.Values(pod, `metadata.labels["x.io/y"]`))
	if found != "[a] [z]" {
		t.Errorf("it found %s", found)
	}
}

func TestPredicatesCombine(t *testing.T) {
	matters := pilothouse.GenerationChanged.Or(pilothouse.LabelsChanged.And(pilothouse.DeletionRequested.Not()))
	if fmt.Sprint(matters) != "[[{generation  false}] [{labels  false} {deletion  true}]]" {
		t.Errorf("it is %v", matters)
	}
}

func TestAConditionKeepsItsTimeWhileItsStatusStays(t *testing.T) {
	old := []pilothouse.Condition{{Type: "Ready", Status: "True", LastTransitionTime: "then"}}
	same := pilothouse.Condition{Type: "Ready", Status: "True", Reason: "B", LastTransitionTime: "now"}
	if kept := pilothouse.SetCondition(old, same); kept[0].LastTransitionTime != "then" || kept[0].Reason != "B" {
		t.Errorf("it is %v", kept)
	}
	same.Status = "False"
	if changed := pilothouse.SetCondition(old, same); changed[0].LastTransitionTime != "now" {
		t.Errorf("it is %v", changed)
	}
}
