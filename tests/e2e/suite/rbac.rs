//! `pilothouse rbac`: what it prints is enough, and without any of its rules a named thing fails.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};
use http::{Request, header};
use kube::client::Body;
use pilothouse_apiserver::yaml;
use pilothouse_e2e::{
    Apple, Host, Plugin, Scene, ServiceAccount,
    account::{is_judged, set_rules},
    eventually, host,
    plugin::Permission,
};
use serde_json::{Value, json};

use crate::watches;

const WEBHOOKS: &str = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";

/// The command's output and exit code.
fn rbac(plugins: &Path, account: &ServiceAccount, more: &[&str]) -> Result<(String, Option<i32>)> {
    let mut command = Command::new(host::binary()?);
    command.args(["rbac", "--namespace", &account.namespace, "--name", &account.name, "--plugins"]).arg(plugins);
    let output = command.args(more).output().context("the command does not start")?;
    eprint!("{}", String::from_utf8_lossy(&output.stderr));
    Ok((String::from_utf8_lossy(&output.stdout).into_owned(), output.status.code()))
}

/// Applies an object, and returns its path.
async fn apply(scene: &Scene, object: &Value) -> Result<String> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (kind, name) = (text(&object["kind"]), text(&object["metadata"]["name"]));
    let root = match text(&object["apiVersion"]) {
        core if core == "v1" => "/api/v1".to_owned(),
        group => format!("/apis/{group}"),
    };
    let place = match text(&object["metadata"]["namespace"]) {
        none if none.is_empty() => root,
        namespace => format!("{root}/namespaces/{namespace}"),
    };
    let path = format!("{place}/{}s/{name}", kind.to_lowercase());
    let request = Request::patch(format!("{path}?fieldManager=test&force=true"))
        .header(header::CONTENT_TYPE, "application/apply-patch+yaml")
        .body(object.to_string().into_bytes())?;
    scene.client().request::<Value>(request).await.with_context(|| format!("cannot apply {path}"))?;
    Ok(path)
}

async fn delete(scene: &Scene, path: &str) -> Result<()> {
    let request = Request::delete(path).body(Body::empty())?;
    scene.client().send(request).await.with_context(|| format!("cannot delete {path}"))?;
    Ok(())
}

/// A Role of the output.
struct Role {
    path: String,
    namespace: Option<String>,
    user: String,
    rules: Vec<Value>,
}

impl Role {
    /// Returns what the API server judges when it is asked for a rule's first access.
    fn first_access(&self, rule: &Value) -> Value {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let resource = text(&rule["resources"][0]);
        let (resource, subresource) = resource.split_once('/').unwrap_or((&resource, ""));
        json!({
            "group": rule["apiGroups"][0], "resource": resource, "subresource": subresource, "verb": rule["verbs"][0],
            "namespace": self.namespace, "name": text(&rule["resourceNames"][0]),
        })
    }
}

/// Applies the output, and returns its Roles.
async fn applied(scene: &Scene, text: &str) -> Result<Vec<Role>> {
    let (documents, error) = yaml::documents(text);
    ensure!(error.is_none(), "{error:?}");
    let objects: Vec<Value> = documents.into_iter().map(|document| document.value).collect();
    let mut roles = Vec::new();
    for object in &objects {
        let path = apply(scene, object).await?;
        let Some(rules) = object["rules"].as_array() else { continue };
        let (metadata, of_role) = (&object["metadata"], |other: &&Value| {
            other["roleRef"]["name"] == object["metadata"]["name"]
                && other["metadata"]["namespace"] == object["metadata"]["namespace"]
        });
        let subject = &objects.iter().find(of_role).context("a Role has no binding")?["subjects"][0];
        let [namespace, name] = ["namespace", "name"].map(|member| subject[member].as_str().unwrap_or_default());
        roles.push(Role {
            path,
            namespace: metadata["namespace"].as_str().map(str::to_owned),
            user: format!("system:serviceaccount:{namespace}:{name}"),
            rules: rules.clone(),
        });
    }
    Ok(roles)
}

/// Waits until the host's log, `/readyz` or `/debug/plugins` names the account, the resource and a verb of a rule.
async fn is_named(host: &mut Host, user: &str, rule: &Value) -> Result<()> {
    let texts = |member: &str| -> Vec<String> {
        rule[member].as_array().into_iter().flatten().filter_map(|text| Some(text.as_str()?.to_owned())).collect()
    };
    let (verbs, resources) = (texts("verbs"), texts("resources"));
    let account = user.trim_start_matches("system:serviceaccount:").replace(':', "/");
    eventually(&format!("the host says what {user} lacks without {rule}"), async || {
        let mut lines: Vec<String> = host.log()?.into_iter().map(|line| line.text).collect();
        if let Ok((_, detail)) = host.get("/readyz?verbose").await {
            lines.extend(detail.lines().map(str::to_owned));
        }
        if let Ok(rows) = host.plugins().await {
            lines.extend(rows.iter().map(Value::to_string));
        }
        let says = |line: &String| {
            (line.contains(user) || line.contains(&account))
                && verbs.iter().any(|verb| line.contains(verb.as_str()))
                && resources.iter().any(|resource| {
                    // The message has quotes, which are escaped in the log.
                    resource == "*"
                        || line.contains(&format!("resource \"{resource}\""))
                        || line.contains(&format!("resource \\\"{resource}\\\""))
                        || line.contains(&format!(" {resource}"))
                })
                && (line.contains("forbidden") || line.contains("may not"))
        };
        ensure!(lines.iter().any(says), "nothing says so in {} lines", lines.len());
        Ok(())
    })
    .await
}

pub(crate) async fn the_printed_rules_are_enough_and_without_any_of_them_a_named_thing_fails(
    mut scene: Scene,
) -> Result<()> {
    // Hosts are killed here, and a host that is killed while it compiles counts against the plugin.
    scene.with_cache_of_its_own();
    let told = format!("{}-told", scene.namespace);
    scene.create_namespace(&told).await?;
    let account =
        ServiceAccount::create(scene.client(), &scene.namespace, &format!("host-{}", scene.namespace)).await?;
    // One plugin has an account of its own, and the other acts as the host.
    let definition = Permission::of_its_crd();
    let here = Permission::of_myapple().map(|permission| permission.within(&scene.namespace));
    let own = Plugin::myapple()?.granted(&[here.as_slice(), &[definition]].concat());
    let own = own.with("serviceAccount", &json!(format!("{}/apples", scene.namespace)))?;
    let there = Permission::of_myapple().map(|permission| permission.within(&told));
    let events = Permission::to(&["create"], "v1", "Event").within(&told);
    let telling = Plugin::guest("telling")?.granted(&[there.as_slice(), &[events]].concat());
    scene.with(&[own, telling])?;

    let (printed, code) = rbac(scene.plugins.path(), &account, &[])?;
    ensure!(code == Some(0), "{printed}");
    for part in ["# myapple: the host caches MyApple, which its controller", "verbs: [impersonate]"] {
        ensure!(printed.contains(part), "{printed}");
    }
    let admin = scene.cluster.kubeconfig();
    let diff = ["--diff", "--kubeconfig", admin.to_str().context("a path")?];
    let (lines, code) = rbac(scene.plugins.path(), &account, &diff)?;
    ensure!(code == Some(1) && lines.lines().all(|line| line.starts_with('-')), "{lines}");
    let roles = applied(&scene, &printed).await?;
    for role in &roles {
        for rule in &role.rules {
            is_judged(&scene.client(), &role.first_access(rule), &role.user, true).await?;
        }
    }
    let (lines, code) = rbac(scene.plugins.path(), &account, &diff)?;
    ensure!(code == Some(0) && lines.is_empty(), "{lines}");
    account.may(&json!([{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}])).await?;
    let surplus = format!("+ {0}/{1}: get pods in {0} (by RoleBinding test-{1})\n", account.namespace, account.name);
    eventually("what is too much is printed", async || {
        let (lines, code) = rbac(scene.plugins.path(), &account, &diff)?;
        ensure!(code == Some(1) && lines == surplus, "{lines}");
        Ok(())
    })
    .await?;
    account.may(&json!([])).await?;

    let host = Hosting::new(&mut scene, account, &[]).await?;
    host.each_rule_is_needed(&mut scene, &roles, &[&told], &[], async |scene: &Scene, host: &mut Host| {
        let gala = scene.apple("gala");
        gala.create(2).await?.settles().await?;
        gala.scale(1).await?;
        gala.settles().await?;
        scene.apple_in(&told, "gala").create(1).await?.status_is("ripe", |status| status["available"] == 1).await?;
        host.code_is_optimized().await
    })
    .await
}

/// Resources whose rules the first test removes.
const SHOWN_ABOVE: [&str; 4] = ["events", "leases", "subjectaccessreviews", "tokenreviews"];

pub(crate) async fn the_rules_for_webhooks_references_patterns_and_tokens_are_needed_too(
    mut scene: Scene,
) -> Result<()> {
    scene.with_cache_of_its_own();
    watches::clear(&scene).await?;
    watches::define(&scene, "Pear").await?;
    let (told, referred) = (format!("{}-told", scene.namespace), format!("{}-referred", scene.namespace));
    for namespace in [&told, &referred] {
        scene.create_namespace(namespace).await?;
    }
    let account =
        ServiceAccount::create(scene.client(), &scene.namespace, &format!("host-{}", scene.namespace)).await?;
    let by_token = json!({"namespace": scene.namespace, "name": "apples", "by": "token"});
    let here = Permission::of_myapple().map(|permission| permission.within(&scene.namespace));
    let own = Plugin::myapple()?.granted(&[here.as_slice(), &[Permission::of_its_crd()]].concat());
    let own = own.with("serviceAccount", &by_token)?;
    // In a namespace of their own: a plugin reads all ConfigMaps of the scene's, so that a rule for one would not be missed.
    let place = |name: &str, key: &str| json!({"namespace": referred, "name": name, "key": key});
    let config = json!({
        "motd": {"valueFrom": {"secretKeyRef": place("texts", "motd")}},
        "signature": {"valueFrom": {"configMapKeyRef": place("names", "signature")}},
    });
    let there = Permission::of_myapple().map(|permission| permission.within(&told));
    let configured = Plugin::guest("configured")?.granted(&there).with("config", &config)?;
    let only_here = format!("kubernetes.io/metadata.name={}", scene.namespace);
    let config = json!({
        "configMap": {"namespace": scene.namespace, "name": "allowed"}, "namespaces": only_here,
    });
    let policy = Plugin::example("registry-policy")?.with("config", &config)?;
    let read = json!({"apiVersion": "v1", "kind": "ConfigMap", "verbs": ["read"], "namespaces": [scene.namespace]});
    let policy = policy.with("grants", &json!([read]))?;
    let following = Plugin::guest("following")?.granted(&[Permission::to(&["read"], "example.com/*", "*")]);
    scene.with(&[own, configured, policy, following])?;
    for (kind, object) in [
        ("secrets", json!({"metadata": {"name": "texts"}, "stringData": {"motd": "hello"}})),
        ("configmaps", json!({"metadata": {"name": "names"}, "data": {"signature": "W."}})),
    ] {
        let path = format!("/api/v1/namespaces/{referred}/{kind}");
        let request = Request::post(&path).header(header::CONTENT_TYPE, "application/json");
        let request = request.body(object.to_string().into_bytes())?;
        scene.client().request::<Value>(request).await.with_context(|| format!("cannot create at {path}"))?;
    }

    let (printed, code) = rbac(scene.plugins.path(), &account, &[])?;
    ensure!(code == Some(0), "{printed}");
    let roles = applied(&scene, &printed).await?;
    let service = format!("{}/{}", account.namespace, account.name);
    let port = pilothouse_real::port::free()?;
    let webhooks = [format!("--webhook-service={service}:{port}"), format!("--webhook-address=127.0.0.1:{port}")];
    let host = Hosting::new(&mut scene, account, &webhooks).await?;
    host.each_rule_is_needed(&mut scene, &roles, &[&told], &SHOWN_ABOVE, async |scene: &Scene, host: &mut Host| {
        scene.apple("gala").create(1).await?.settles().await?;
        watches::grow(scene, "Pear", "williams").await?;
        host.logs(&["observed", "added Pear williams"]).await?;
        scene.apple_in(&told, "gala").create(1).await?.status_is("ripe", |status| status["available"] == 1).await?;
        eventually("the API server has the webhooks", async || {
            let rows = host.webhooks().await?;
            ensure!(rows.iter().any(|row| row["plugin"] == "registry-policy"), "{rows:?}");
            Ok(())
        })
        .await?;
        host.code_is_optimized().await
    })
    .await?;
    // Nobody serves it any more.
    delete(&scene, &format!("{WEBHOOKS}?labelSelector=app.kubernetes.io/managed-by=pilothouse")).await
}

/// Hosts that elect the one that acts and use the account alone.
struct Hosting {
    account: ServiceAccount,
    kubeconfig: PathBuf,
    /// Further arguments.
    arguments: Vec<String>,
}

impl Hosting {
    async fn new(scene: &mut Scene, account: ServiceAccount, more: &[String]) -> Result<Self> {
        let kubeconfig = account.kubeconfig(&scene.cluster.kubeconfig(), scene.folder()).await?;
        let elects = [
            "--leader-elect".to_owned(),
            format!("--leader-elect-resource-namespace={}", account.namespace),
            format!("--leader-elect-resource-name={}", account.name),
        ];
        Ok(Self { account, kubeconfig, arguments: [&elects, more].concat() })
    }

    /// Removes what earlier hosts made, so that the next host makes it: the Lease, and the certificates.
    async fn forget(&self, scene: &Scene) -> Result<()> {
        let ServiceAccount { namespace, name, .. } = &self.account;
        delete(scene, &format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{name}")).await?;
        delete(scene, &format!("/api/v1/namespaces/{namespace}/secrets/{name}-tls")).await
    }

    /// Checks that the Roles are enough for `work`. Then removes each rule in turn, starts a host, and waits until it
    /// names what it lacks. There is a new MyApple each time, in the namespace of the scene and in those of `places`.
    /// Leaves out the rules for the resources `but`.
    async fn each_rule_is_needed(
        &self,
        scene: &mut Scene,
        roles: &[Role],
        places: &[&str],
        but: &[&str],
        work: impl AsyncFn(&Scene, &mut Host) -> Result<()>,
    ) -> Result<()> {
        scene.run_with(&self.arguments);
        let mut host = scene.host_as(self.kubeconfig.clone())?;
        host.ready().await?;
        work(scene, &mut host).await?;
        host.terminate().await?;

        for role in roles {
            for (at, rule) in role.rules.iter().enumerate() {
                if rule["resources"]
                    .as_array()
                    .into_iter()
                    .flatten()
                    .any(|resource| but.iter().any(|but| resource == but))
                {
                    continue;
                }
                let mut others = role.rules.clone();
                others.remove(at);
                set_rules(&scene.client(), &role.path, &json!(others)).await?;
                is_judged(&scene.client(), &role.first_access(rule), &role.user, false).await?;
                self.forget(scene).await?;
                let asks_for_metrics = rule["resources"][0] == "tokenreviews";
                if asks_for_metrics {
                    let secure = ["--metrics-address=127.0.0.1:0", "--metrics-secure=true", "--health-probe-address=0"];
                    scene.run_with(&[&self.arguments[..], &secure.map(str::to_owned)].concat());
                }
                let mut host = scene.host_as(self.kubeconfig.clone())?;
                if asks_for_metrics {
                    let line = host.logs(&["serving metrics"]).await?;
                    ask_for_metrics(line.field("address").context("no address")?).await?;
                }
                let before = roles.iter().take_while(|other| other.path != role.path).count();
                let name = format!("a{}", before * 100 + at);
                let elsewhere = places.iter().map(|place| scene.apple_in(place, &name));
                let apples: Vec<Apple> = std::iter::once(scene.apple(&name)).chain(elsewhere).collect();
                for apple in &apples {
                    apple.create(1).await?;
                }
                is_named(&mut host, &role.user, rule).await.with_context(|| format!("{} without {rule}", role.path))?;
                drop(host);
                scene.run_with(&self.arguments);
                for apple in &apples {
                    apple.delete().await?;
                }
                set_rules(&scene.client(), &role.path, &json!(role.rules)).await?;
            }
        }
        for role in roles {
            delete(scene, &role.path).await?;
        }
        Ok(())
    }
}

/// Asks for metrics over TLS with some token.
async fn ask_for_metrics(address: &str) -> Result<()> {
    let mut config = kube::Config::new(format!("https://{address}").parse().context("not a URL")?);
    (config.default_retry, config.accept_invalid_certs) = (false, true);
    let client = kube::Client::try_from(config)?;
    let request = Request::get("/metrics").header(header::AUTHORIZATION, "Bearer somebody").body(Body::empty())?;
    let answer = client.send(request).await.context("no answer to /metrics")?;
    ensure!(!answer.status().is_success(), "/metrics is answered {}", answer.status());
    Ok(())
}
