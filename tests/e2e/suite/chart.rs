//! The chart: what Helm makes of it, and what the API server says to its objects.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};
use pilothouse_apiserver::yaml;
use pilothouse_e2e::{Kind, Scene, host::binary, kubectl::Kubectl, suite::NotHere};
use pilothouse_real::assets;
use serde_json::{Value, json};

/// Values, each set in force alone.
const VALUES: [(&str, &str); 4] = [
    ("defaults", "{}"),
    (
        "everything",
        "
webhooks: true
replicas: 3
metrics: {certificateSecret: certificates, serviceMonitor: true, alerts: true}
rbac:
  clusterAdmin: true
  rules:
    - {apiGroups: [stable.example.com], resources: [myapples], verbs: [get, list, watch]}
networkPolicy:
  egress:
    - ports: [{port: 8080}]
plugins: {copyFrom: {image: 'registry.example.com/plugins:1'}}
args: [--log, debug]
env:
  - {name: HTTPS_PROXY, value: 'http://proxy:3128'}
serviceAccount: {annotations: {example.com/role: host}}
podAnnotations: {example.com/team: 'yes'}
nodeSelector: {kubernetes.io/arch: amd64}
tolerations:
  - {key: example.com/host, operator: Exists, effect: NoSchedule}
imagePullSecrets:
  - {name: registry}
priorityClassName: system-cluster-critical
",
    ),
    ("volume", "plugins: {volume: {persistentVolumeClaim: {claimName: plugins}}}"),
    ("little", "{podDisruptionBudget: false, networkPolicy: {enabled: false}, rbac: {create: false}}"),
];

/// What the objects of the Prometheus operator may have, as far as the chart uses it.
const PROMETHEUS: &str = r#"
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: servicemonitors.monitoring.coreos.com}
spec:
  group: monitoring.coreos.com
  names: {kind: ServiceMonitor, plural: servicemonitors, singular: servicemonitor}
  scope: Namespaced
  versions:
    - name: v1
      served: true
      storage: true
      schema:
        openAPIV3Schema:
          type: object
          required: [spec]
          properties:
            spec:
              type: object
              required: [endpoints, selector]
              properties:
                selector:
                  type: object
                  properties:
                    matchLabels: {type: object, additionalProperties: {type: string}}
                endpoints:
                  type: array
                  items:
                    type: object
                    properties:
                      port: {type: string}
                      path: {type: string}
                      scheme: {type: string, enum: [http, https]}
                      bearerTokenFile: {type: string}
                      tlsConfig:
                        type: object
                        properties:
                          serverName: {type: string}
                          insecureSkipVerify: {type: boolean}
                          ca:
                            type: object
                            properties:
                              secret:
                                type: object
                                required: [key]
                                properties: {name: {type: string}, key: {type: string}}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: prometheusrules.monitoring.coreos.com}
spec:
  group: monitoring.coreos.com
  names: {kind: PrometheusRule, plural: prometheusrules, singular: prometheusrule}
  scope: Namespaced
  versions:
    - name: v1
      served: true
      storage: true
      schema:
        openAPIV3Schema:
          type: object
          required: [spec]
          properties:
            spec:
              type: object
              properties:
                groups:
                  type: array
                  items:
                    type: object
                    required: [name]
                    properties:
                      name: {type: string, minLength: 1}
                      rules:
                        type: array
                        items:
                          type: object
                          required: [expr]
                          properties:
                            alert: {type: string}
                            expr: {anyOf: [{type: integer}, {type: string}], x-kubernetes-int-or-string: true}
                            for: {type: string, pattern: '^(0|(([0-9]+)d)?(([0-9]+)h)?(([0-9]+)m)?(([0-9]+)s)?(([0-9]+)ms)?)$'}
                            labels: {type: object, additionalProperties: {type: string}}
                            annotations: {type: object, additionalProperties: {type: string}}
"#;

/// The chart in a folder of the scene, and files of values beside it.
struct Chart {
    folder: PathBuf,
    helm: PathBuf,
    namespace: String,
}

impl Chart {
    fn write(scene: &Scene) -> Result<Self> {
        let helm = assets::helm()?.ok_or(NotHere("no Helm: `make real-assets` builds it"))?;
        let folder = scene.folder().join("chart");
        run(Command::new(binary()?).arg("manifests").arg("--chart").arg(&folder))?;
        for (name, values) in VALUES {
            fs::write(scene.folder().join(format!("{name}.yaml")), values).context("cannot write values")?;
        }
        Ok(Self { folder, helm, namespace: scene.namespace.clone() })
    }

    fn values(&self, name: &str) -> PathBuf {
        self.folder.with_file_name(format!("{name}.yaml"))
    }

    /// A `helm` that has neither settings nor caches of the user.
    fn helm(&self) -> Command {
        let mut command = Command::new(&self.helm);
        command.env("HOME", self.folder.with_file_name("home")).env_remove("KUBECONFIG");
        command
    }

    fn of_helm(&self, values: &str) -> Result<String> {
        let mut command = self.helm();
        command.args(["template", "house"]).arg(&self.folder).args(["--namespace", &self.namespace]);
        run(command.arg("--values").arg(self.values(values)))
    }

    fn of_manifests(&self, values: &str) -> Result<String> {
        let mut command = Command::new(binary()?);
        command.args(["manifests", "--name=house", "--namespace", &self.namespace]);
        run(command.arg("--values").arg(self.values(values)))
    }
}

/// Returns the objects of a text by kind and name.
fn objects(text: &str) -> Result<BTreeMap<String, Value>> {
    let (documents, error) = yaml::documents(text);
    ensure!(error.is_none(), "this is no YAML: {error:?}\n{text}");
    let objects = documents.into_iter().map(|document| document.value).filter(|object| !object.is_null());
    Ok(objects.map(|object| (format!("{} {}", object["kind"], object["metadata"]["name"]), object)).collect())
}

fn run(command: &mut Command) -> Result<String> {
    let program = Path::new(command.get_program()).display().to_string();
    let output = command.output().with_context(|| format!("cannot run {program}"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    ensure!(output.status.success(), "{program} says: {}{}", text(&output.stdout), text(&output.stderr));
    Ok(text(&output.stdout))
}

pub(crate) async fn helm_finds_no_fault_in_the_chart_and_makes_what_manifests_prints(scene: Scene) -> Result<()> {
    let chart = Chart::write(&scene)?;
    for (name, _) in VALUES {
        run(chart.helm().args(["lint", "--strict"]).arg(&chart.folder).arg("--values").arg(chart.values(name)))
            .with_context(|| format!("with the values {name}"))?;
        let of_helm = objects(&chart.of_helm(name)?)?;
        let mut printed = objects(&chart.of_manifests(name)?)?;
        // Helm creates it itself.
        printed.retain(|_, object| object["kind"] != "Namespace");
        ensure!(of_helm.len() > 3, "Helm makes {of_helm:?}");
        ensure!(of_helm == printed, "with the values {name} Helm makes {of_helm:#?}\nand not {printed:#?}");
    }
    let wrong = run(chart.helm().args(["template", "house"]).arg(&chart.folder).args(["--set", "replica=3"]));
    ensure!(wrong.is_err_and(|error| format!("{error:#}").contains("replica")), "Helm takes an unknown value");
    Ok(())
}

pub(crate) async fn the_api_server_accepts_every_object_of_the_chart_without_a_warning(scene: Scene) -> Result<()> {
    let Some(kubectl) = Kubectl::find(&scene.cluster.kubeconfig(), &scene.namespace)? else {
        return Err(NotHere("no kubectl: `make real-assets` builds it").into());
    };
    let chart = Chart::write(&scene)?;
    kubectl.run_on(PROMETHEUS, &["apply", "--server-side", "-f", "-"]).await?;
    let definitions = ["crd/servicemonitors.monitoring.coreos.com", "crd/prometheusrules.monitoring.coreos.com"];
    let [monitors, rules] = definitions;
    kubectl.run(&["wait", "--for=condition=established", monitors, rules]).await?;

    // With the labels that make the API server compare pods with the restricted standard.
    let namespace = objects(&chart.of_manifests("defaults")?)?.into_values().find(|one| one["kind"] == "Namespace");
    let namespace = namespace.context("there is no namespace")?.to_string();
    kubectl.run_on(&namespace, &["apply", "--server-side", "--force-conflicts", "-f", "-"]).await?;
    let dry = ["apply", "--server-side", "--dry-run=server", "--warnings-as-errors", "-f", "-"];
    for (name, _) in VALUES {
        for text in [chart.of_manifests(name)?, chart.of_helm(name)?] {
            let said = kubectl.run_on(&text, &dry).await.with_context(|| format!("with the values {name}"))?;
            let applied = said.lines().filter(|line| line.ends_with("serverside-applied (server dry run)")).count();
            ensure!(applied == objects(&text)?.len(), "with the values {name} kubectl says: {said}");
        }
    }
    if scene.cluster.kind() == Kind::Real {
        // This server does compare.
        let mut objects = objects(&chart.of_manifests("defaults")?)?;
        let deployment = objects.values_mut().find(|object| object["kind"] == "Deployment").context("no Deployment")?;
        deployment["spec"]["template"]["spec"]["hostNetwork"] = json!(true);
        let error = kubectl.run_on(&deployment.to_string(), &dry).await.err().context("there is no warning")?;
        ensure!(format!("{error:#}").contains("restricted"), "{error:#}");
    }
    kubectl.run(&["delete", monitors, rules]).await?;
    Ok(())
}
