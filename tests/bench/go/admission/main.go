// Is the webhook of tests/guests/examples/reviewing.rs as one writes it with controller-runtime, for the bench to measure: see
// tests/bench/src/lines/admission.rs.
//
// It compares the images of a Pod with a ConfigMap that it reads from the manager's cache. It serves neither metrics nor health, and it logs
// nothing. It says "serving" when it answers, and ends with its input.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "go:", err)
		os.Exit(1)
	}
}

func run() error {
	if len(os.Args) != 5 {
		return errors.New("usage: admission KUBECONFIG NAMESPACE PORT CERTIFICATES")
	}
	namespace := os.Args[2]
	port, err := strconv.Atoi(os.Args[3])
	if err != nil {
		return err
	}
	ctrl.SetLogger(logr.Discard())
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		return err
	}
	config, err := clientcmd.BuildConfigFromFlags("", os.Args[1])
	if err != nil {
		return err
	}
	manager, err := ctrl.NewManager(config, ctrl.Options{
		Scheme:                 scheme,
		Metrics:                server.Options{BindAddress: "0"},
		HealthProbeBindAddress: "0",
		Cache: cache.Options{
			DefaultTransform:  cache.TransformStripManagedFields(),
			DefaultNamespaces: map[string]cache.Config{namespace: {}},
		},
		WebhookServer: webhook.NewServer(webhook.Options{Host: "127.0.0.1", Port: port, CertDir: os.Args[4]}),
	})
	if err != nil {
		return err
	}
	ctx, end := context.WithCancel(context.Background())
	defer end()
	if _, err := manager.GetCache().GetInformer(ctx, &corev1.ConfigMap{}, cache.BlockUntilSynced(false)); err != nil {
		return err
	}
	policy := &policy{reader: manager.GetClient(), decoder: admission.NewDecoder(scheme)}
	webhooks := manager.GetWebhookServer()
	webhooks.Register("/images", &webhook.Admission{Handler: policy})
	go func() {
		if !manager.GetCache().WaitForCacheSync(ctx) {
			// The manager ends, and says why.
			return
		}
		for webhooks.StartedChecker()(nil) != nil {
			time.Sleep(10 * time.Millisecond)
		}
		fmt.Println("serving")
		// Until the bench has gone.
		_, _ = io.Copy(io.Discard, os.Stdin)
		end()
	}()
	return manager.Start(ctx)
}

// policy denies images from elsewhere.
type policy struct {
	reader  client.Reader
	decoder admission.Decoder
}

// Handle reviews one Pod.
func (p *policy) Handle(ctx context.Context, request admission.Request) admission.Response {
	var pod corev1.Pod
	if err := p.decoder.Decode(request, &pod); err != nil {
		return admission.Errored(http.StatusBadRequest, err)
	}
	var images corev1.ConfigMap
	key := client.ObjectKey{Namespace: request.Namespace, Name: "images"}
	if err := p.reader.Get(ctx, key, &images); client.IgnoreNotFound(err) != nil {
		return admission.Errored(http.StatusInternalServerError, err)
	}
	registry := images.Data["registry"]
	response := admission.Allowed("")
	for _, container := range pod.Spec.Containers {
		if !strings.HasPrefix(container.Image, registry) {
			response = admission.Denied(fmt.Sprintf("the image %s is not from %s", container.Image, registry))
			break
		}
	}
	response.AuditAnnotations = map[string]string{"registry": registry}
	return response.WithWarnings("the images were reviewed")
}
