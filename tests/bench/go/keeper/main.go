// Keeps pods as client-go's informers keep them, for the bench to measure: see tests/bench/src/keepers, whose protocol it
// speaks.
//
// The informer is what a controller has: managedFields are dropped by a transform, owners are indexed, and each change
// goes through a handler that routes it to its owner's key and a rate-limiting workqueue.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "go:", err)
		os.Exit(1)
	}
}

func run() error {
	if len(os.Args) != 2 {
		return errors.New("usage: keeper typed|dynamic, and commands on standard input")
	}
	kind := os.Args[1]
	commands := bufio.NewScanner(os.Stdin)
	fmt.Println("ready")

	var pods *keeper
	for commands.Scan() {
		command, argument, _ := strings.Cut(commands.Text(), " ")
		switch {
		case command == "start" && pods == nil:
			var err error
			if pods, err = start(kind, argument); err != nil {
				return err
			}
			fmt.Println("synced")
		case command == "count" && pods != nil:
			fmt.Println(pods.objects.Load(), pods.updates.Load())
		case command == "settle" && pods != nil:
			fmt.Println(settle())
		default:
			return fmt.Errorf("not a command here: %q", commands.Text())
		}
	}
	// The bench has gone.
	return commands.Err()
}

// settle collects garbage, as the runtime does by itself every two minutes, and tells how many bytes are live. What the runtime
// then keeps from the system is left to it: an operator at rest has it too.
func settle() uint64 {
	// The second frees what finalizers held in the first.
	runtime.GC()
	runtime.GC()
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	return memory.HeapAlloc
}

// keeper counts what its informer's handlers saw.
type keeper struct {
	objects, updates atomic.Int64
	queue            workqueue.TypedRateLimitingInterface[string]
}

// start returns when the informer and its handlers have seen the first list.
func start(kind, url string) (*keeper, error) {
	config := &rest.Config{Host: url}
	informer, err := informerOf(kind, config)
	if err != nil {
		return nil, err
	}
	err = informer.SetTransform(func(object any) (any, error) {
		if accessor, err := meta.Accessor(object); err == nil {
			accessor.SetManagedFields(nil)
		}
		return object, nil
	})
	if err != nil {
		return nil, err
	}
	if err := informer.AddIndexers(cache.Indexers{"owner": ownersOf}); err != nil {
		return nil, err
	}
	keeper := &keeper{queue: workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[string]())}
	handled, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(pod any) { keeper.objects.Add(1); keeper.route(pod) },
		UpdateFunc: func(_, pod any) { keeper.updates.Add(1); keeper.route(pod) },
		DeleteFunc: func(any) { keeper.objects.Add(-1) },
	})
	if err != nil {
		return nil, err
	}
	go keeper.work()
	go informer.Run(context.Background().Done())
	if !cache.WaitForCacheSync(context.Background().Done(), informer.HasSynced, handled.HasSynced) {
		return nil, errors.New("the informer does not sync")
	}
	return keeper, nil
}

func informerOf(kind string, config *rest.Config) (cache.SharedIndexInformer, error) {
	switch kind {
	case "typed":
		client, err := kubernetes.NewForConfig(config)
		if err != nil {
			return nil, err
		}
		return informers.NewSharedInformerFactory(client, 0).Core().V1().Pods().Informer(), nil
	case "dynamic":
		client, err := dynamic.NewForConfig(config)
		if err != nil {
			return nil, err
		}
		pods := schema.GroupVersionResource{Version: "v1", Resource: "pods"}
		return dynamicinformer.NewDynamicSharedInformerFactory(client, 0).ForResource(pods).Informer(), nil
	default:
		return nil, fmt.Errorf("no kind of informer: %q", kind)
	}
}

func ownersOf(object any) ([]string, error) {
	accessor, err := meta.Accessor(object)
	if err != nil {
		return nil, err
	}
	var owners []string
	for _, owner := range accessor.GetOwnerReferences() {
		owners = append(owners, string(owner.UID))
	}
	return owners, nil
}

// route enqueues the key of the pod's controller.
func (k *keeper) route(object any) {
	accessor, err := meta.Accessor(object)
	if err != nil {
		return
	}
	if owner := metav1.GetControllerOf(accessor); owner != nil {
		k.queue.Add(accessor.GetNamespace() + "/" + owner.Name)
	}
}

func (k *keeper) work() {
	for {
		key, ended := k.queue.Get()
		if ended {
			return
		}
		k.queue.Done(key)
	}
}
