//! Webhooks: the API server calls the host over TLS, and a plugin answers.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::{
    admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration},
    core::v1::{ConfigMap, Pod},
};
use kube::{
    Api,
    api::{DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams},
    core::ApiResource,
};
use pilothouse_e2e::{Host, Plugin, Scene, eventually};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use serde_json::{Value, from_value, json};

pub(crate) async fn an_image_policy_in_a_config_map_denies_a_pod(mut scene: Scene) -> Result<()> {
    scene.serve_webhooks(&[])?;
    let mut host = reviewed(&scene, false).await?;
    let denied = create(&scene, "bad", "docker.io/nginx", false).await;
    let status = refusal(denied)?;
    ensure!(
        status.0 == 422 && status.1.contains("the image docker.io/nginx is not from registry.example.com/"),
        "{status:?}"
    );
    let pod = create(&scene, "good", "registry.example.com/nginx", false).await?;
    ensure!(pod.metadata.labels.context("it has labels")?["reviewed"] == "yes");
    let pod = create(&scene, "dry", "registry.example.com/nginx", true).await?;
    ensure!(pod.metadata.labels.context("it has labels")?["reviewed"] == "dry-run");

    // The policy is read from the cache, and a change of it counts at once.
    policy(&scene, "docker.io/").await?;
    eventually("the new policy is in force", async || create(&scene, "now", "docker.io/nginx", true).await.map(drop))
        .await?;

    let rows = host.webhooks().await?;
    let row = |webhook: &str| rows.iter().find(|row| row["webhook"] == webhook).context("a webhook has no row");
    let (images, labels) = (row("images")?, row("labels")?);
    for (row, of_type) in [(images, "validating"), (labels, "mutating")] {
        ensure!(row["plugin"] == name(&scene) && row["type"] == of_type, "{row}");
        ensure!(row["in_force"] == true && row["remark"].is_null() && row["certificate_expires"].is_string(), "{row}");
        ensure!(row["rules"] == json!(["CREATE v1 pods"]), "{row}");
    }
    let (calls, denied) = (images["calls"].as_u64().context("calls")?, images["denied"].as_u64().context("denied")?);
    ensure!(denied > 0 && calls > denied && images["failed"] == 0 && labels["denied"] == 0, "{images} {labels}");
    let (path, metrics) = (format!("/admission/{}/images", name(&scene)), host.metrics().await?);
    let counted = |metric: &str| metrics.sum(metric, &[("webhook", &path)]);
    ensure!(counted("controller_runtime_webhook_requests_total") == calls as f64, "{calls} calls");
    ensure!(counted("pilothouse_webhook_denied_total") == denied as f64, "{denied} are denied");
    Ok(())
}

pub(crate) async fn a_webhook_that_is_not_granted_has_no_configuration(mut scene: Scene) -> Result<()> {
    scene.serve_webhooks(&[])?;
    policy(&scene, "registry.example.com/").await?;
    let yaml = yaml(&scene, false, &["labels"]);
    let plugin = Plugin::guest("reviewing")?.named(&name(&scene)).with_yaml(yaml);
    let mut host = scene.with(&[plugin])?.host().await?;
    eventually("the other webhook is there", async || {
        let mutating: Api<MutatingWebhookConfiguration> = Api::all(scene.client());
        mutating.get(&configuration(&scene)).await.map(drop).context("no configuration")
    })
    .await?;
    let validating: Api<ValidatingWebhookConfiguration> = Api::all(scene.client());
    ensure!(validating.get_opt(&configuration(&scene)).await?.is_none(), "it is not granted");
    let detail = host.readiness_of(&name(&scene)).await?;
    ensure!(detail.contains("the webhook images"), "{detail}");
    create(&scene, "any", "docker.io/nginx", true).await.map(drop)
}

pub(crate) async fn a_removed_plugin_has_no_configuration_and_an_edited_one_is_set_back(
    mut scene: Scene,
) -> Result<()> {
    scene.serve_webhooks(&[])?;
    let _host = reviewed(&scene, false).await?;
    let validating: Api<ValidatingWebhookConfiguration> = Api::all(scene.client());
    let configuration = configuration(&scene);
    let edit = json!({"metadata": {"labels": {"app.kubernetes.io/managed-by": "pilothouse"}}, "webhooks": null});
    validating.patch(&configuration, &PatchParams::default(), &Patch::Merge(&edit)).await?;
    eventually("it is set back", async || {
        let live = validating.get(&configuration).await?;
        ensure!(live.webhooks.is_some_and(|webhooks| webhooks.len() == 1), "it has no webhook");
        Ok(())
    })
    .await?;
    scene.plugins.remove(&name(&scene))?;
    eventually("it is deleted", async || {
        ensure!(validating.get_opt(&configuration).await?.is_none(), "it is still there");
        create(&scene, "any", "docker.io/nginx", true).await.map(drop)
    })
    .await
}

pub(crate) async fn a_host_that_is_down_leaves_it_to_the_failure_policy(mut scene: Scene) -> Result<()> {
    scene.serve_webhooks(&[])?;
    let mut host = reviewed(&scene, false).await?;
    host.terminate().await?;
    let (_, message) = refusal(create(&scene, "a", "registry.example.com/nginx", true).await)?;
    ensure!(message.contains("failed calling webhook"), "{message}");
    host.start_again()?;
    eventually("the host answers again", async || {
        create(&scene, "a", "registry.example.com/nginx", true).await.map(drop)
    })
    .await?;
    scene.plugins.put(&guest(&scene, true)?)?;
    let validating: Api<ValidatingWebhookConfiguration> = Api::all(scene.client());
    eventually("the policy is Ignore", async || {
        let live = validating.get(&configuration(&scene)).await?;
        let policies: Vec<_> = live.webhooks.iter().flatten().map(|webhook| webhook.failure_policy.clone()).collect();
        ensure!(policies == [Some("Ignore".to_owned())], "{policies:?}");
        Ok(())
    })
    .await?;
    host.terminate().await?;
    eventually("the request is allowed without an answer", async || {
        create(&scene, "a", "docker.io/nginx", true).await.map(drop)
    })
    .await
}

pub(crate) async fn certificates_change_under_load_and_no_call_fails(mut scene: Scene) -> Result<()> {
    let folder = scene.folder().join("certificates");
    std::fs::create_dir(&folder)?;
    write_certificates(&folder)?;
    let file = |name: &str| folder.join(name).display().to_string();
    let files = [file("tls.crt"), file("tls.key"), file("ca.crt")];
    scene.serve_webhooks(&[
        "--webhook-cert-file",
        &files[0],
        "--webhook-key-file",
        &files[1],
        "--webhook-ca-file",
        &files[2],
    ])?;
    let host = reviewed(&scene, false).await?;
    let (first, scene) = (std::fs::read_to_string(&files[2])?, Arc::new(scene));
    let load = Load::start(&scene);
    write_certificates(&folder)?;
    host.logs(&["serving a new certificate of webhooks"]).await?;
    let validating: Api<ValidatingWebhookConfiguration> = Api::all(scene.client());
    eventually("only the new authority is trusted", async || {
        let live = validating.get(&configuration(&scene)).await?;
        let bundle = live.webhooks.into_iter().flatten().find_map(|webhook| webhook.client_config.ca_bundle);
        let bundle = String::from_utf8(bundle.context("no bundle")?.0)?;
        ensure!(!bundle.contains(first.trim()), "the old authority is still trusted");
        Ok(())
    })
    .await?;
    load.end().await
}

pub(crate) async fn a_plugin_is_replaced_under_load_and_no_call_fails(mut scene: Scene) -> Result<()> {
    scene.serve_webhooks(&[])?;
    let mut host = reviewed(&scene, false).await?;
    let scene = Arc::new(scene);
    let load = Load::start(&scene);
    for revision in 1..4 {
        scene.plugins.put(&guest(&scene, false)?.revision(revision))?;
        eventually("the newer revision serves", async || {
            let reloads = host.metrics().await?.sum("pilothouse_plugin_reloads_total", &[("plugin", &name(&scene))]);
            ensure!(reloads >= f64::from(u32::from(revision)), "{reloads} reloads");
            Ok(())
        })
        .await?;
    }
    load.end().await
}

pub(crate) async fn invariant_8_a_review_that_fails_costs_itself_one_call(mut scene: Scene) -> Result<()> {
    scene.serve_webhooks(&[])?;
    policy(&scene, "registry.example.com/").await?;
    let bad = format!("{}-bad", name(&scene));
    let config = json!({"config": {"namespace": scene.namespace}, "webhooks": ["strict", "lenient"]});
    let badly = Plugin::guest("reviewing_badly")?.named(&bad).with_yaml(config.to_string());
    let mut host = scene.with(&[guest(&scene, false)?, badly])?.host().await?;
    in_force(&scene).await?;
    let create_map = async |policy: &str, mistake: &str| {
        let labels = json!({"policy": policy, "mistake": mistake});
        let map = json!({"metadata": {"name": format!("{policy}-{mistake}"), "labels": labels}});
        let dry = PostParams { dry_run: true, ..PostParams::default() };
        scene.config_maps().create(&dry, &from_value::<ConfigMap>(map)?).await.map_err(anyhow::Error::from)
    };
    eventually("its webhook is in force", async || match create_map("strict", "fail").await {
        Ok(_) => bail!("nobody reviewed it"),
        Err(_) => Ok(()),
    })
    .await?;
    for mistake in ["trap", "loop", "fail", "huge"] {
        let (_, message) = refusal(create_map("strict", mistake).await)?;
        ensure!(message.contains("failed calling webhook"), "{mistake}: {message}");
        create_map("lenient", mistake).await.with_context(|| format!("{mistake} is ignored"))?;
        // The other plugin reviews on.
        create(&scene, "good", "registry.example.com/nginx", true).await?;
        refusal(create(&scene, "bad", "docker.io/nginx", true).await)?;
    }
    create_map("strict", "none").await?;
    let rows = host.webhooks().await?;
    let strict = rows.iter().find(|row| row["webhook"] == "strict").context("it has no row")?;
    let (failed, last) = (strict["failed"].as_u64().context("failed")?, &strict["last_failure"]);
    ensure!(failed >= 4 && last["code"] == 500 && last["message"].is_string(), "{strict}");
    Ok(())
}

pub(crate) async fn objects_are_converted_between_versions(mut scene: Scene) -> Result<()> {
    scene.serve_webhooks(&[])?;
    let converting = Plugin::guest("converting")?.limited(&json!({"timeoutMs": 2_000}))?;
    let mut host = scene.with(&[converting])?.host().await?;
    let lamps = |version: &str| -> Api<DynamicObject> {
        let kind = GroupVersionKind::gvk("converting.example.com", version, "Lamp");
        let resource = ApiResource::from_gvk_with_plural(&kind, "lamps");
        Api::namespaced_with(scene.client(), &scene.namespace, &resource)
    };
    let lamp = |version: &str, name: &str, spec: Value| -> Result<DynamicObject> {
        let api_version = format!("converting.example.com/{version}");
        Ok(from_value(json!({"apiVersion": api_version, "kind": "Lamp", "metadata": {"name": name}, "spec": spec}))?)
    };
    eventually("the kind is served", async || {
        lamps("v1").create(&PostParams::default(), &lamp("v1", "hall", json!({"lit": true}))?).await?;
        Ok(())
    })
    .await?;
    let stored = lamps("v2").get("hall").await?;
    ensure!(stored.data["spec"] == json!({"percent": 100}), "{:?}", stored.data);
    lamps("v2").create(&PostParams::default(), &lamp("v2", "cellar", json!({"percent": 0}))?).await?;
    let listed = lamps("v1").list(&ListParams::default()).await?.items;
    let lit: Vec<Value> = listed.iter().map(|lamp| lamp.data["spec"]["lit"].clone()).collect();
    ensure!(lit == [json!(false), json!(true)], "{lit:?}");
    lamps("v2").create(&PostParams::default(), &lamp("v2", "sun", json!({"percent": 1000}))?).await?;
    let Err(error) = lamps("v1").get("sun").await else { bail!("it was converted") };
    ensure!(error.to_string().contains("a lamp has at most 100 percent"), "{error}");
    // A call that dies, answers too much or never ends costs itself.
    let mistakes = [
        ("broken", 1001, "plugin trapped"),
        ("huge", 1002, "an API server takes at most"),
        ("endless", 1003, "plugin was stopped at its deadline"),
    ];
    for (name, percent, why) in mistakes {
        lamps("v2").create(&PostParams::default(), &lamp("v2", name, json!({"percent": percent}))?).await?;
        let Err(error) = lamps("v1").get(name).await else { bail!("it was converted") };
        ensure!(error.to_string().contains(why), "{error}");
        ensure!(lamps("v1").get("hall").await?.data["spec"] == json!({"lit": true}), "the others are converted on");
    }
    let rows = host.webhooks().await?;
    let row = rows.iter().find(|row| row["type"] == "conversion").context("it has no row")?;
    ensure!(row["in_force"] == true && row["rules"] == json!(["lamps.converting.example.com"]), "{row}");
    let failed = row["failed"].as_u64().context("failed")?;
    ensure!(failed >= 4 && row["last_failure"]["code"] == 200, "{row}");
    Ok(())
}

/// The name of the test's plugin. All tests share the kinds of configurations.
fn name(scene: &Scene) -> String {
    format!("reviewing-{}", scene.namespace)
}

/// The name of its configurations.
fn configuration(scene: &Scene) -> String {
    format!("pilothouse-{}", name(scene))
}

fn yaml(scene: &Scene, ignore: bool, webhooks: &[&str]) -> String {
    let read = json!({"apiVersion": "v1", "kind": "ConfigMap", "verbs": ["read"]});
    let config = json!({"namespace": scene.namespace, "ignore": ignore});
    json!({"config": config, "webhooks": webhooks, "grants": [read]}).to_string()
}

fn guest(scene: &Scene, ignore: bool) -> Result<Plugin> {
    Ok(Plugin::guest("reviewing")?.named(&name(scene)).with_yaml(yaml(scene, ignore, &["images", "labels"])))
}

/// Starts a host whose plugin reviews the Pods of the test's namespace, and waits until the API server asks it.
async fn reviewed(scene: &Scene, ignore: bool) -> Result<Host> {
    policy(scene, "registry.example.com/").await?;
    let host = scene.with(&[guest(scene, ignore)?])?.host().await?;
    in_force(scene).await?;
    Ok(host)
}

async fn in_force(scene: &Scene) -> Result<()> {
    eventually("the webhook is in force", async || match create(scene, "probe", "docker.io/nginx", true).await {
        Ok(_) => bail!("a Pod with a foreign image is accepted"),
        Err(_) => create(scene, "probe", "registry.example.com/nginx", true).await.map(drop),
    })
    .await
}

async fn policy(scene: &Scene, registry: &str) -> Result<()> {
    let map = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "images"}, "data": {"registry": registry},
    });
    let apply = PatchParams::apply("test").force();
    scene.config_maps().patch("images", &apply, &Patch::Apply(&map)).await?;
    Ok(())
}

async fn create(scene: &Scene, name: &str, image: &str, dry_run: bool) -> Result<Pod> {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"containers": [{"name": "a", "image": image}]},
    });
    let pods: Api<Pod> = Api::namespaced(scene.client(), &scene.namespace);
    Ok(pods.create(&PostParams { dry_run, ..PostParams::default() }, &from_value(pod)?).await?)
}

/// Returns code and message of a rejected request.
fn refusal<T>(answer: Result<T>) -> Result<(u16, String)> {
    let Err(error) = answer else { bail!("the request is not rejected") };
    match error.downcast::<kube::Error>()? {
        kube::Error::Api(status) => Ok((status.code, status.message)),
        other => Err(other.into()),
    }
}

/// Pods that are created over and over, as dry runs.
struct Load {
    stop: Arc<AtomicBool>,
    workers: Vec<tokio::task::JoinHandle<Result<u32>>>,
}

impl Load {
    fn start(scene: &Arc<Scene>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let worker = |number: u32| {
            let (scene, stop) = (scene.clone(), stop.clone());
            tokio::spawn(async move {
                let mut count = 0;
                while !stop.load(Ordering::Relaxed) {
                    create(&scene, &format!("load-{number}"), "registry.example.com/nginx", true).await?;
                    let (code, message) = refusal(create(&scene, "foreign", "docker.io/nginx", true).await)?;
                    ensure!(code == 422, "{message}");
                    count += 1;
                }
                Ok(count)
            })
        };
        Self { workers: (0..4).map(worker).collect(), stop }
    }

    /// Ends it. Each request must have been reviewed.
    async fn end(self) -> Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        for worker in self.workers {
            let count = worker.await.context("the load broke off")??;
            ensure!(count > 0, "nothing was reviewed");
        }
        Ok(())
    }
}

/// Writes a new authority, and a certificate of it for 127.0.0.1.
fn write_certificates(folder: &Path) -> Result<()> {
    let mut authority = CertificateParams::new(Vec::new())?;
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate()?;
    let ca = authority.self_signed(&key)?.pem();
    let issuer = Issuer::new(authority, key);
    let key = KeyPair::generate()?;
    let certificate = CertificateParams::new(vec!["127.0.0.1".to_owned()])?.signed_by(&key, &issuer)?.pem();
    for (name, content) in [("ca.crt", ca), ("tls.crt", certificate), ("tls.key", key.serialize_pem())] {
        let new = folder.join("new");
        std::fs::write(&new, content)?;
        std::fs::rename(&new, folder.join(name))?;
    }
    Ok(())
}
