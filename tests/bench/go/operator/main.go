// Is the example plugin's operator as one writes it with controller-runtime, for the bench to measure: see tests/bench/src/lines/operator.rs.
//
// It does what plugins/myapple and the host do together: of each MyApple as many ConfigMaps as it asks for, the surplus deleted, drift
// repaired, and a status that counts them. The manager is what a scaffolded one is: a cache of typed objects, a priority queue, a client
// that reads from the cache and writes without a rate limit of its own. managedFields are dropped, it serves neither metrics nor health,
// and it logs nothing. It says "synced" when it begins to reconcile, and ends with its input.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

const (
	workers = 10
	// owner is the field of the cache by which ConfigMaps are found.
	owner = ".metadata.controller"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "go:", err)
		os.Exit(1)
	}
}

func run() error {
	if len(os.Args) != 2 {
		return errors.New("usage: operator KUBECONFIG")
	}
	ctrl.SetLogger(logr.Discard())
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		return err
	}
	scheme.AddKnownTypes(groupVersion, &MyApple{}, &MyAppleList{})
	metav1.AddToGroupVersion(scheme, groupVersion)
	config, err := clientcmd.BuildConfigFromFlags("", os.Args[1])
	if err != nil {
		return err
	}
	config.QPS = -1
	manager, err := ctrl.NewManager(config, ctrl.Options{
		Scheme:                 scheme,
		Metrics:                server.Options{BindAddress: "0"},
		HealthProbeBindAddress: "0",
		Cache:                  cache.Options{DefaultTransform: cache.TransformStripManagedFields()},
	})
	if err != nil {
		return err
	}
	ctx, end := context.WithCancel(context.Background())
	defer end()
	err = manager.GetFieldIndexer().IndexField(ctx, &corev1.ConfigMap{}, owner, func(object client.Object) []string {
		controller := metav1.GetControllerOf(object)
		if controller == nil || controller.APIVersion != groupVersion.String() || controller.Kind != "MyApple" {
			return nil
		}
		return []string{controller.Name}
	})
	if err != nil {
		return err
	}
	err = ctrl.NewControllerManagedBy(manager).
		For(&MyApple{}).
		Owns(&corev1.ConfigMap{}).
		WithOptions(controller.Options{MaxConcurrentReconciles: workers}).
		Complete(&reconciler{Client: manager.GetClient(), scheme: scheme})
	if err != nil {
		return err
	}
	go func() {
		if !manager.GetCache().WaitForCacheSync(ctx) {
			// The manager ends, and says why.
			return
		}
		fmt.Println("synced")
		// Until the bench has gone.
		_, _ = io.Copy(io.Discard, os.Stdin)
		end()
	}()
	return manager.Start(ctx)
}

type reconciler struct {
	client.Client
	scheme *runtime.Scheme
}

func (r *reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	var apple MyApple
	if err := r.Get(ctx, request.NamespacedName, &apple); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if !apple.DeletionTimestamp.IsZero() {
		return ctrl.Result{}, nil
	}
	var available int32
	wanted := make(map[string]bool, apple.Spec.Quantity)
	for i := range apple.Spec.Quantity {
		child := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: apple.Namespace, Name: fmt.Sprintf("%s-%d", apple.Name, i)}}
		wanted[child.Name] = true
		done, err := controllerutil.CreateOrUpdate(ctx, r.Client, child, func() error {
			child.Data = map[string]string{"color": apple.Spec.Color, "size": apple.Spec.Size}
			return controllerutil.SetControllerReference(&apple, child, r.scheme)
		})
		if err != nil {
			return ctrl.Result{}, err
		}
		if done == controllerutil.OperationResultNone {
			available++
		}
	}
	var children corev1.ConfigMapList
	if err := r.List(ctx, &children, client.InNamespace(apple.Namespace), client.MatchingFields{owner: apple.Name}); err != nil {
		return ctrl.Result{}, err
	}
	for i := range children.Items {
		if child := &children.Items[i]; !wanted[child.Name] {
			if err := r.Delete(ctx, child); client.IgnoreNotFound(err) != nil {
				return ctrl.Result{}, err
			}
		}
	}

	status := *apple.Status.DeepCopy()
	status.Available = available
	status.ObservedGeneration = apple.Generation
	ready := metav1.Condition{
		Type: "Ready", Status: metav1.ConditionFalse, Reason: "Progressing", ObservedGeneration: apple.Generation,
		Message: fmt.Sprintf("%d of %d available", available, apple.Spec.Quantity),
	}
	if available == apple.Spec.Quantity {
		ready.Status, ready.Reason = metav1.ConditionTrue, "AllAvailable"
	}
	meta.SetStatusCondition(&status.Conditions, ready)
	if equality.Semantic.DeepEqual(status, apple.Status) {
		return ctrl.Result{}, nil
	}
	apple.Status = status
	return ctrl.Result{}, r.Status().Update(ctx, &apple)
}

var groupVersion = schema.GroupVersion{Group: "stable.example.com", Version: "v1"}

// MyApple is the kind that plugins/myapple brings.
type MyApple struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              MyAppleSpec   `json:"spec"`
	Status            MyAppleStatus `json:"status,omitempty"`
}

// MyAppleSpec is which apples are wanted, and how many.
type MyAppleSpec struct {
	Color    string `json:"color"`
	Size     string `json:"size"`
	Quantity int32  `json:"quantity"`
}

// MyAppleStatus is what there is of it.
type MyAppleStatus struct {
	Available          int32              `json:"available"`
	Conditions         []metav1.Condition `json:"conditions,omitempty"`
	ObservedGeneration int64              `json:"observedGeneration,omitempty"`
}

// MyAppleList is many of them.
type MyAppleList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []MyApple `json:"items"`
}

// DeepCopy shares nothing with it.
func (s *MyAppleStatus) DeepCopy() *MyAppleStatus {
	copied := *s
	copied.Conditions = nil
	for i := range s.Conditions {
		copied.Conditions = append(copied.Conditions, *s.Conditions[i].DeepCopy())
	}
	return &copied
}

// DeepCopyObject shares nothing with it.
func (a *MyApple) DeepCopyObject() runtime.Object {
	copied := *a
	copied.ObjectMeta = *a.ObjectMeta.DeepCopy()
	copied.Status = *a.Status.DeepCopy()
	return &copied
}

// DeepCopyObject shares nothing with it.
func (l *MyAppleList) DeepCopyObject() runtime.Object {
	copied := *l
	copied.ListMeta = *l.ListMeta.DeepCopy()
	copied.Items = make([]MyApple, 0, len(l.Items))
	for i := range l.Items {
		copied.Items = append(copied.Items, *l.Items[i].DeepCopyObject().(*MyApple))
	}
	return &copied
}
