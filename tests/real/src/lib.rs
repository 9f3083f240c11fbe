//! A real etcd, kube-apiserver and kube-controller-manager for tests.
