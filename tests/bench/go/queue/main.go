// Prints what it takes to pass a key through a workqueue: add, get, done. See tests/bench/src/lines/queue.rs, which does the same to
// ours.
//
// 10,000 keys are added, then each is taken and given back; the median of 50 such passes, in microseconds for each key. By the wall
// clock, as the priority queue works in goroutines of its own. No metrics are kept.
package main

import (
	"fmt"
	"os"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

const (
	keys   = 10_000
	passes = 50
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "go:", err)
		os.Exit(1)
	}
}

func run() error {
	kinds := map[string]func() workqueue.TypedInterface[reconcile.Request]{
		"priority": func() workqueue.TypedInterface[reconcile.Request] {
			silent := func(o *priorityqueue.Opts[reconcile.Request]) { o.MetricProvider = unmetered{} }
			return priorityqueue.New("bench", silent)
		},
		"workqueue": func() workqueue.TypedInterface[reconcile.Request] {
			return workqueue.NewTyped[reconcile.Request]()
		},
	}
	if len(os.Args) != 2 || kinds[os.Args[1]] == nil {
		return fmt.Errorf("usage: queue priority|workqueue")
	}
	queue := kinds[os.Args[1]]()
	defer queue.ShutDown()

	all := make([]reconcile.Request, keys)
	for n := range all {
		all[n] = reconcile.Request{NamespacedName: types.NamespacedName{
			Namespace: "orders-production", Name: fmt.Sprintf("apple-%05d", n),
		}}
	}
	times := make([]float64, 0, passes)
	for range passes {
		start := time.Now()
		for _, key := range all {
			queue.Add(key)
		}
		for range all {
			key, ended := queue.Get()
			if ended {
				return fmt.Errorf("the queue has ended")
			}
			queue.Done(key)
		}
		times = append(times, float64(time.Since(start).Nanoseconds())/1e3/keys)
	}
	slices.Sort(times)
	fmt.Println((times[(passes-1)/2] + times[passes/2]) / 2)
	return nil
}

// unmetered keeps no metrics.
type unmetered struct{}

func (unmetered) Inc()            {}
func (unmetered) Dec()            {}
func (unmetered) Set(float64)     {}
func (unmetered) Observe(float64) {}

func (unmetered) NewDepthMetric(string) workqueue.GaugeMetric            { return unmetered{} }
func (unmetered) NewAddsMetric(string) workqueue.CounterMetric           { return unmetered{} }
func (unmetered) NewLatencyMetric(string) workqueue.HistogramMetric      { return unmetered{} }
func (unmetered) NewWorkDurationMetric(string) workqueue.HistogramMetric { return unmetered{} }
func (unmetered) NewUnfinishedWorkSecondsMetric(string) workqueue.SettableGaugeMetric {
	return unmetered{}
}
func (unmetered) NewLongestRunningProcessorSecondsMetric(string) workqueue.SettableGaugeMetric {
	return unmetered{}
}
func (unmetered) NewRetriesMetric(string) workqueue.CounterMetric { return unmetered{} }
