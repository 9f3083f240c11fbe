//! The objects that a `Website` consists of.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::{
        apps::v1::{Deployment, DeploymentSpec},
        core::v1::{
            ConfigMapEnvSource, Container, ContainerPort, EnvFromSource, HTTPGetAction, PodSpec, PodTemplateSpec,
            Probe, SecretEnvSource, Service, ServicePort, ServiceSpec,
        },
        networking::v1::{
            HTTPIngressPath, HTTPIngressRuleValue, Ingress, IngressBackend, IngressRule, IngressServiceBackend,
            IngressSpec, ServiceBackendPort,
        },
    },
    apimachinery::pkg::{
        apis::meta::v1::{LabelSelector, ObjectMeta},
        util::intstr::IntOrString,
    },
};
use pilothouse_sdk::Object;

use crate::{CHECKSUM, Website};

/// The name of the container's port and of the Service's.
const PORT: &str = "http";

/// Returns the labels of everything that belongs to the website. They select its Pods, so they never change.
pub(crate) fn labels(site: &Website) -> BTreeMap<String, String> {
    let labels = [("app.kubernetes.io/name", "website"), ("app.kubernetes.io/instance", site.name())];
    labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into()
}

fn metadata(site: &Website) -> ObjectMeta {
    ObjectMeta { name: Some(site.name().to_owned()), labels: Some(labels(site)), ..ObjectMeta::default() }
}

/// Returns the Deployment. Another checksum is another Pod template, so the Pods are replaced.
pub(crate) fn deployment(site: &Website, checksum: Option<String>) -> Deployment {
    let template = PodTemplateSpec {
        metadata: Some(ObjectMeta {
            labels: Some(labels(site)),
            annotations: checksum.map(|checksum| [(CHECKSUM.to_owned(), checksum)].into()),
            ..ObjectMeta::default()
        }),
        spec: Some(PodSpec { containers: vec![container(site)], ..PodSpec::default() }),
    };
    let spec = DeploymentSpec {
        replicas: Some(site.spec.replicas),
        selector: LabelSelector { match_labels: Some(labels(site)), ..LabelSelector::default() },
        template,
        ..DeploymentSpec::default()
    };
    Deployment { metadata: metadata(site), spec: Some(spec), ..Deployment::default() }
}

fn container(site: &Website) -> Container {
    let spec = &site.spec;
    let config_map = spec.config_map.iter().map(|name| EnvFromSource {
        config_map_ref: Some(ConfigMapEnvSource { name: name.clone(), ..ConfigMapEnvSource::default() }),
        ..EnvFromSource::default()
    });
    let secret = spec.secret.iter().map(|name| EnvFromSource {
        secret_ref: Some(SecretEnvSource { name: name.clone(), ..SecretEnvSource::default() }),
        ..EnvFromSource::default()
    });
    let answers = HTTPGetAction { port: IntOrString::String(PORT.to_owned()), ..HTTPGetAction::default() };
    Container {
        name: "web".to_owned(),
        image: Some(spec.image.clone()),
        env_from: Some(config_map.chain(secret).collect()).filter(|all: &Vec<_>| !all.is_empty()),
        ports: Some(vec![ContainerPort {
            name: Some(PORT.to_owned()),
            container_port: spec.port,
            ..ContainerPort::default()
        }]),
        readiness_probe: Some(Probe { http_get: Some(answers), ..Probe::default() }),
        ..Container::default()
    }
}

/// Returns the Service, which gives the Pods one address.
pub(crate) fn service(site: &Website) -> Service {
    let port = ServicePort {
        name: Some(PORT.to_owned()),
        port: 80,
        target_port: Some(IntOrString::String(PORT.to_owned())),
        ..ServicePort::default()
    };
    let spec = ServiceSpec { selector: Some(labels(site)), ports: Some(vec![port]), ..ServiceSpec::default() };
    Service { metadata: metadata(site), spec: Some(spec), ..Service::default() }
}

/// Returns the Ingress, which leads requests for `host` to the Service.
pub(crate) fn ingress(site: &Website, host: &str, class: Option<String>) -> Ingress {
    let port = ServiceBackendPort { name: Some(PORT.to_owned()), number: None };
    let service = IngressServiceBackend { name: site.name().to_owned(), port: Some(port) };
    let path = HTTPIngressPath {
        path: Some("/".to_owned()),
        path_type: "Prefix".to_owned(),
        backend: IngressBackend { service: Some(service), resource: None },
    };
    let http = HTTPIngressRuleValue { paths: vec![path] };
    let rule = IngressRule { host: Some(host.to_owned()), http: Some(http) };
    let spec = IngressSpec { ingress_class_name: class, rules: Some(vec![rule]), ..IngressSpec::default() };
    Ingress { metadata: metadata(site), spec: Some(spec), ..Ingress::default() }
}
