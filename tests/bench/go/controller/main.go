// Is a controller of ConfigMaps as controller-runtime makes it, for the bench to measure: see tests/bench/src/controllers, whose protocol
// it speaks.
//
// The manager is what a scaffolded one is: a cache of typed objects, a priority queue, one worker, a client that reads from the cache.
// managedFields are dropped, and it serves neither metrics nor health.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// mark is the annotation by which the bench tells its changes apart.
const mark = "guests.example.com/mark"

// called is a reconcile: which change it saw, and when it was entered, in nanoseconds since 1970.
type called struct {
	mark string
	at   int64
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "go:", err)
		os.Exit(1)
	}
}

func run() error {
	ctrl.SetLogger(logr.Discard())
	commands := bufio.NewScanner(os.Stdin)
	fmt.Println("ready")

	// More than there are objects, so that no reconcile waits for the bench.
	calls := make(chan called, 4096)
	started := false
	for commands.Scan() {
		command, argument, _ := strings.Cut(commands.Text(), " ")
		switch {
		case command == "start" && !started:
			if err := start(argument, calls); err != nil {
				return err
			}
			started = true
			fmt.Println("synced")
		case command == "next" && started:
			call := <-calls
			fmt.Printf("%d %s\n", call.at, call.mark)
		default:
			return fmt.Errorf("not a command here: %q", commands.Text())
		}
	}
	// The bench has gone.
	return commands.Err()
}

func start(url string, calls chan<- called) error {
	manager, err := ctrl.NewManager(&rest.Config{Host: url}, ctrl.Options{
		Metrics:                server.Options{BindAddress: "0"},
		HealthProbeBindAddress: "0",
		Cache:                  cache.Options{DefaultTransform: cache.TransformStripManagedFields()},
	})
	if err != nil {
		return err
	}
	reconciler := func(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
		at := time.Now().UnixNano()
		var object corev1.ConfigMap
		if err := manager.GetClient().Get(ctx, request.NamespacedName, &object); err != nil {
			return reconcile.Result{}, client.IgnoreNotFound(err)
		}
		calls <- called{mark: object.Annotations[mark], at: at}
		return reconcile.Result{}, nil
	}
	err = ctrl.NewControllerManagedBy(manager).For(&corev1.ConfigMap{}).Complete(reconcile.Func(reconciler))
	if err != nil {
		return err
	}
	ctx := context.Background()
	go func() {
		if err := manager.Start(ctx); err != nil {
			fmt.Fprintln(os.Stderr, "go: the manager has ended:", err)
			os.Exit(1)
		}
	}()
	if !manager.GetCache().WaitForCacheSync(ctx) {
		return errors.New("the cache does not sync")
	}
	return nil
}
